//! Tests `eldest run` with versions: a program of an older version does not run after a newer one.

use crate::diary::{Diary, output, text};
use crate::stage::{ELECTION, Result, Stage, TTL};

/// An `eldest` that the program runs in another election would otherwise require the version there.
#[tokio::test]
async fn variable_of_the_version_is_not_passed_to_the_program() -> Result {
    let stage = Stage::new().await?;
    let mut eldest = stage.eldest(TTL);
    eldest.env("ELDEST_APP_VERSION", "2.0");
    let script = "echo version=$ELDEST_APP_VERSION.";
    eldest.args(["run", ELECTION, "--", "/bin/sh", "-c", script]);
    let ended = output(eldest).await?;
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(text(&ended.stdout), "version=.\n");
    let mut shown = stage.eldest(TTL);
    shown.args(["version", ELECTION]);
    let shown = text(&output(shown).await?.stdout);
    assert!(shown.contains("2.0, first led by"), "{shown}");
    Ok(())
}

#[tokio::test]
async fn program_of_an_older_version_does_not_run_after_a_newer_one() -> Result {
    let stage = Stage::new().await?;
    let diary = Diary::of(&stage);
    let script = |name: &str| format!("echo {name} >> DIARY; exec sleep 1000");
    let mut new = stage.script("new", &["--app-version", "2.0"], &script("new"))?;
    diary.says("new").await?;
    let mut old = stage.script("old", &["--app-version", "1.9"], &script("old"))?;
    stage.has_candidate("old").await?;
    new.stop().await?;
    let mut newer = stage.script("newer", &["--app-version", "2"], &script("newer"))?;
    diary.says("newer").await?;
    assert_eq!(diary.lines(), ["new", "newer"]);
    assert!(
        old.log().contains("holds back: a newer version has led"),
        "{}",
        old.log()
    );
    let mut remove = stage.eldest(TTL);
    remove.args(["version", ELECTION, "--remove"]);
    let removed = output(remove).await?;
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    newer.stop().await?;
    diary.says("old").await?;
    old.stop().await?;
    Ok(())
}
