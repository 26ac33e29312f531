//! Tests what the page shows of evacuated data centres, which a sidecar takes orders for.

use std::net::SocketAddr;

use eldest_fixtures::http::{answers, send};

use crate::browser::Browser;
use crate::looks::CONTRASTS;
use crate::shared::{ELECTION, Result, Stage};

async fn order(at: SocketAddr, method: &str, body: &str) -> Result {
    let answer = send(at, method, "/v1/evacuations/dc1", body).await?;
    assert_eq!(answer.status, 200, "{}", answer.body);
    Ok(())
}

#[tokio::test]
async fn order_and_its_nodes_are_shown_until_it_is_lifted() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let place = |name| ["--announce", name];
    let a = stage.node("60s", "a", &place("data_center=dc1")).await?;
    answers(a.at, "/leader", 200).await?;
    let b = stage.node("60s", "b", &place("data_center=dc2")).await?;
    answers(b.at, "/ready", 200).await?;
    browser.open(b.at).await?;
    browser.until_count(".roster tbody tr", 2).await?;
    let hidden = "document.querySelector('.orders').hidden";
    assert_eq!(browser.evaluate(hidden).await?, true);

    let text = r#"{"for_ms": 7200000, "by": "ops", "reason": "<b>new</b> switches"}"#;
    order(a.at, "PUT", text).await?;
    browser.until_leads(ELECTION, "b").await?;
    browser.until_count(".orders li", 1).await?;
    let said = browser.texts(".orders li").await?.concat();
    assert!(
        said.starts_with("Data centre dc1 is evacuated until "),
        "{said}"
    );
    assert!(said.ends_with(", by ops: <b>new</b> switches"), "{said}");
    browser.until_count(".roster tbody tr", 2).await?;
    let away = "[...document.querySelectorAll('.badge.away')].map(badge => badge.parentElement.firstChild.textContent)";
    assert_eq!(browser.evaluate(away).await?, serde_json::json!(["a"]));
    for scheme in ["light", "dark"] {
        browser.scheme(scheme).await?;
        let worst = &browser.evaluate(CONTRASTS).await?[0];
        assert!(worst[0].as_f64() >= Some(4.5), "{scheme}: {worst}");
    }

    order(b.at, "DELETE", "").await?;
    browser.until(hidden).await?;
    browser.until_count(".badge.away", 0).await?;
    assert!(browser.is_the_same().await?, "it was loaded again");
    assert_eq!(browser.complaints(), [""; 0]);
    Ok(())
}
