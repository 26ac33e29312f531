//! Tests `eldest lock`: programs under a lock, and under the permits of a semaphore.

use std::time::Duration;

use eldest_fixtures::text::has;
use eldest_testing::eventually;

use crate::stage::{Ended, FOR_EVER, Node, Result, SOON, Stage};

/// A TTL so long that a program has time to end within its part of it.
const TTL: Duration = Duration::from_secs(20);

/// Runs, under "res", a program that writes when it begins and, a while after SIGTERM, when it ends.
fn holder(stage: &Stage, name: &str, options: &[&str]) -> Result<Node> {
    let script = "trap 'sleep 0.2; echo end-$ELDEST_ID. >> DIARY; exit 0' TERM; \
        echo begin-$ELDEST_ID. >> DIARY; echo token-$ELDEST_FENCING_TOKEN >> DIARY.tokens; while :; do sleep 0.02; done";
    let grace = format!("{:?}", TTL / 4);
    let lock = ["lock", "res", "--grace", &grace];
    stage.scripted(TTL, name, &[&lock, options].concat(), script)
}

/// Waits until that number of programs hold or await the resource; returns the keys, eldest first, with their leases.
async fn standing(stage: &Stage, prefix: &str, count: usize) -> Result<Vec<(Vec<u8>, i64)>> {
    Ok(
        eventually(SOON, format!("{count} keys below {prefix}"), async || {
            let keys = stage.keys(prefix).await.ok()?;
            (keys.len() == count).then_some(keys)
        })
        .await?,
    )
}

/// Runs a command that ends by itself.
async fn call(stage: &Stage, options: &[&str]) -> Result<Ended> {
    let args = [&["lock", "res"], options, &["--", "sh", "-c", "exit 9"]].concat();
    stage.runs(TTL, &args).await
}

#[tokio::test]
async fn lock_not_free_in_time_has_its_own_exit_code() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let held = format!("echo held >> DIARY; {FOR_EVER}");
    let mut holder = stage.scripted(TTL, "a", &["lock", "res"], &held)?;
    diary.says("held").await?;
    for wait in ["0s", "300ms"] {
        let said = call(&stage, &["--wait", wait]).await?.with(75);
        assert!(said.contains("\"res\" was not free"), "{said}");
    }
    // The command is stopped while it waits; its exit code says that the program did not run.
    let mut asked = stage.scripted(TTL, "b", &["lock", "res"], "exit 0")?;
    standing(&stage, "eldest/res/", 2).await?;
    assert_eq!(asked.stop().await?.code(), Some(75), "{}", asked.log());
    let (waited, stopped) = tokio::join!(call(&stage, &["--wait", "20s"]), async {
        standing(&stage, "eldest/res/", 2).await?;
        holder.stop().await
    });
    assert_eq!(stopped?.code(), Some(143));
    waited?.with(9);
    Ok(())
}

#[tokio::test]
async fn a_permit_that_is_lost_ends_its_program_before_the_next_begins() -> Result {
    let options = ["-n", "1"];
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let mut a = holder(&stage, "a", &options)?;
    diary.says("begin-a.").await?;
    let mut b = holder(&stage, "b", &options)?;
    let keys = standing(&stage, "eldest/~semaphore/res/1/", 2).await?;
    stage.client().await.delete(keys[0].0.clone(), None).await?;
    assert_eq!(a.end().await?.code(), Some(74), "{}", a.log());
    diary.says("begin-b.").await?;
    b.stop().await?;
    assert_eq!(diary.lines(), ["begin-a.", "end-a.", "begin-b.", "end-b."]);
    Ok(())
}

#[tokio::test]
async fn with_two_permits_two_programs_run_at_once_and_the_third_waits() -> Result {
    const PERMITS: &str = "eldest/~semaphore/res/2/";
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let two = ["-n", "2"];
    let mut a = holder(&stage, "a", &two)?;
    diary.says("begin-a.").await?;
    let mut b = holder(&stage, "b", &two)?;
    diary.says("begin-b.").await?;
    let mut c = holder(&stage, "c", &["--capacity", "2"])?;
    let keys = standing(&stage, PERMITS, 3).await?;
    // A program also needs this permit to begin, even if the key of its first permit is deleted.
    standing(&stage, "eldest/~run/~semaphore/res/2/", 2).await?;
    assert!(!diary.text().contains("begin-c."), "{}", diary.text());

    let said = call(&stage, &["-n", "2", "--wait", "0s"]).await?.with(75);
    has(
        &said,
        &["a permit of \"res\" (capacity 2) was not free at once"],
    );
    let said = call(&stage, &["-n", "3"]).await?.with(2);
    has(
        &said,
        &["capacity 3 was requested", "permits of capacity 2"],
    );
    let shown = stage.runs(TTL, &["status", "--summary"]).await?.with(0);
    assert!(
        shown.contains("res (semaphore of 2)") && !shown.contains("~run"),
        "{shown}"
    );
    // The lock of the same name is independent of the semaphore.
    call(&stage, &[]).await?.with(9);
    assert_eq!(
        standing(&stage, PERMITS, 3).await?,
        keys,
        "nobody else came or left"
    );

    assert_eq!(a.stop().await?.code(), Some(0), "{}", a.log());
    diary.says("begin-c.").await?;
    b.stop().await?;
    c.stop().await?;
    assert_eq!(
        diary.lines()[..4],
        ["begin-a.", "begin-b.", "end-a.", "begin-c."]
    );
    let tokens = std::fs::read_to_string(stage.path("notes.tokens"))?;
    let token = |line: &str| line.strip_prefix("token-")?.parse::<i64>().ok();
    let tokens: Vec<i64> = tokens.lines().filter_map(token).collect();
    assert!(
        tokens.len() == 3 && tokens.is_sorted_by(|a, b| a < b),
        "{tokens:?}"
    );
    standing(&stage, "eldest/", 0).await?;
    Ok(())
}

#[tokio::test]
async fn programs_that_share_a_lock_run_together_and_others_wait() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let mut a = holder(&stage, "a", &["--shared"])?;
    diary.says("begin-a.").await?;
    let mut b = holder(&stage, "b", &["--shared"])?;
    diary.says("begin-b.").await?;
    let mut writer = holder(&stage, "w", &[])?;
    standing(&stage, "eldest/res/", 3).await?;
    let said = call(&stage, &["--shared", "--wait", "0s"]).await?.with(75);
    has(&said, &["the shared lock \"res\" was not free"]);
    assert_eq!(a.stop().await?.code(), Some(0));
    assert!(!diary.text().contains("begin-w."), "it waits for b");
    assert_eq!(b.stop().await?.code(), Some(0));
    diary.says("begin-w.").await?;
    assert_eq!(writer.stop().await?.code(), Some(0));
    call(&stage, &["--shared", "-n", "2"]).await?.with(2);
    Ok(())
}
