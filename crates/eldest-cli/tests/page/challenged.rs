//! Tests what the page shows of challenges.

use eldest_fixtures::http::answers;
use rustix::process::Signal;

use crate::browser::Browser;
use crate::shared::{ELECTION, Result, Stage};

#[tokio::test]
async fn silent_node_is_shown_as_condemned_by_the_node_that_took_over() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let options = "--grace 200ms --challenges 2s --challenges-listen 127.0.0.1:0";
    let options: Vec<&str> = options.split(' ').collect();
    let a = stage.node("60s", "a", &options).await?;
    answers(a.at, "/leader", 200).await?;
    let b = stage.node("60s", "b", &options).await?;
    answers(b.at, "/ready", 200).await?;
    browser.open(b.at).await?;
    browser.until_count(".roster tbody tr", 2).await?;
    let hidden = "document.getElementById('challenges').hidden";
    assert_eq!(browser.evaluate(hidden).await?, true);
    a.signal(Signal::STOP);
    browser.until_leads(ELECTION, "b").await?;
    browser.until_count("#challenges tbody tr", 1).await?;
    let said = browser.texts("#challenges tbody tr").await?.concat();
    assert!(
        said.starts_with('a') && said.contains("suspected by this node"),
        "{said}"
    );
    assert!(said.ends_with("condemned, over"), "{said}");
    assert!(browser.is_the_same().await?, "it was loaded again");
    assert_eq!(browser.complaints(), [""; 0]);
    Ok(())
}
