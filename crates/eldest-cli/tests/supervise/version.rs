//! Tests `eldest run` with versions: a program of an older version does not run after a newer one.

use eldest_fixtures::text::has;

use crate::stage::{ELECTION, Result, Stage, TTL};

#[tokio::test]
async fn program_of_an_older_version_does_not_run_after_a_newer_one() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let script = |name: &str| format!("echo {name} >> DIARY; exec sleep 1000");
    let mut new = stage.script("new", &["--app-version", "2.0"], &script("new"))?;
    diary.says("new").await?;
    let mut old = stage.script("old", &["--app-version", "1.9"], &script("old"))?;
    stage.has_candidate("old").await?;
    new.stop().await?;
    let mut newer = stage.script("newer", &["--app-version", "2"], &script("newer"))?;
    diary.says("newer").await?;
    assert_eq!(diary.lines(), ["new", "newer"]);
    has(&old.log(), &["holds back: a newer version has led"]);
    let remove = ["version", ELECTION, "--remove"];
    stage.runs(TTL, &remove).await?.with(0);
    newer.stop().await?;
    diary.says("old").await?;
    old.stop().await?;
    Ok(())
}
