//! Tests that the page shows who owns which partition, and changes as the owners do.

use eldest_fixtures::http::answers;
use serde_json::json;

use crate::browser::Browser;
use crate::looks::CONTRASTS;
use crate::shared::{Result, Stage};

/// Each member with its partitions and their number.
const ROWS: &str = "[...document.querySelectorAll(\"[data-partitions='mail/eu'] tbody tr\")].map(row => \
    [row.querySelector('.name').textContent, row.cells[1].textContent, row.cells[2].textContent])";

/// Waits until the page shows these rows.
async fn until_shares(browser: &mut Browser, wanted: &[[&str; 3]]) -> Result {
    let wanted = json!(wanted);
    browser
        .until(&format!(
            "JSON.stringify({ROWS}) === JSON.stringify({wanted})"
        ))
        .await
}

#[tokio::test]
async fn owners_of_partitions_are_shown_as_they_change() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let own = ["--own", "mail/eu=4", "--announce", "data_center=dc1"];
    let a = stage.node("60s", "a", &own).await?;
    answers(a.at, "/leader", 200).await?;
    let looks = ["--partitions", "mail/eu=4", "--observe"];
    let observer = stage.node("60s", "observer", &looks).await?;
    browser.open(observer.at).await?;
    until_shares(&mut browser, &[["a", "0-3", "4"]]).await?;
    let said = browser.texts("[data-partitions] :is(.about, .said bdi)");
    assert_eq!(said.await?, ["4 partitions, 1 member", "dc1"]);
    let hidden = "document.querySelector('[data-partitions] .notice').hidden";
    browser.until(hidden).await?;
    for scheme in ["light", "dark"] {
        browser.scheme(scheme).await?;
        let worst = &browser.evaluate(CONTRASTS).await?[0];
        assert!(worst[0].as_f64() >= Some(4.5), "{scheme}: {worst}");
    }

    let b = stage.node("60s", "b", &own).await?;
    let shared = format!("{ROWS}.map(row => row[0] + row[2]).join() === 'a2,b2'");
    browser.until(&shared).await?;
    a.close().await?;
    until_shares(&mut browser, &[["b", "0-3", "4"]]).await?;
    let kept = [&own[..], &["--keep-share-for", "1h"]].concat();
    let c = stage.node("60s", "c", &kept).await?;
    let shared = format!("{ROWS}.map(row => row[0] + row[2]).join() === 'b2,c2'");
    browser.until(&shared).await?;
    let owned = browser.evaluate(ROWS).await?;
    c.close().await?;
    browser
        .until_count("[data-partitions] .badge.away", 1)
        .await?;
    let kept = format!("JSON.stringify({ROWS}) === JSON.stringify({owned})");
    browser.until(&kept).await?;
    let absent = browser.texts("[data-partitions] .badge.away").await?;
    assert_eq!(absent, ["absent"]);

    b.close().await?;
    let free = "document.querySelector('[data-partitions] .notice').textContent .startsWith('Without an owner: ')";
    browser.until(free).await?;
    assert!(browser.is_the_same().await?, "it was loaded again");
    assert_eq!(browser.complaints(), [""; 0]);
    Ok(())
}
