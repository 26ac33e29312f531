//! Tests the page when its node dies, is stopped, refuses requests, or has lost etcd, and when the node recovers.

use eldest_fixtures::hang::{freeze, idle};
use eldest_fixtures::http::{answers, get};
use eldest_testing::eventually;
use eldest_testing::internal::Port;
use rustix::process::Signal;
use tokio::io::AsyncReadExt;

use crate::browser::Browser;
use crate::shared::{ELECTION, Node, Result, SOON, Stage};

const LOST: &str = "document.body.dataset.connection === 'lost' && \
    document.querySelector('#connection').textContent.startsWith('no answer since ')";
const LIVE: &str = "document.body.dataset.connection === 'live' && \
    document.querySelector('#connection').textContent === 'live'";

/// Starts a node at that port, for example again after it died.
async fn serve(stage: &Stage, at: &str, name: &str, elections: &[&str]) -> Result<Node> {
    let mut args = vec!["serve"];
    args.extend(elections);
    args.extend(["--id", name, "--listen", at, "--grace", "400ms"]);
    Node::listening(name, stage.command("3s", &args)).await
}

#[tokio::test]
async fn page_reports_a_dead_node_and_continues_with_the_next() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let at = Port::free()?.address();
    let first = serve(&stage, &at, "first", &["kept", "dropped"]).await?;
    browser.open(first.at).await?;
    browser.until_leads("dropped", "first").await?;
    browser.until(LIVE).await?;
    first.signal(Signal::KILL);
    browser.until(LOST).await?;
    assert_eq!(browser.evaluate("document.title").await?, "? eldest");
    assert_eq!(
        browser.texts("[data-election] h2").await?,
        ["kept", "dropped"],
        "what was known is kept"
    );
    let _second = serve(&stage, &at, "second", &["kept", "new"]).await?;
    browser.until(LIVE).await?;
    browser.until_leads("new", "second").await?;
    // "second" leads in the other one once the lease of the dead node has expired.
    browser.until_leads("kept", "second").await?;
    browser
        .until("[...document.querySelectorAll('h2')].every(one => one.textContent !== 'dropped')")
        .await?;
    assert!(browser.is_the_same().await?, "it was loaded again");
    Ok(())
}

#[tokio::test]
async fn page_reports_a_stopped_node_despite_the_open_connection() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let node = stage.node("60s", "a", &[]).await?;
    browser.open(node.at).await?;
    browser.until(LIVE).await?;
    freeze(&node.child)?;
    browser.until(LOST).await?;
    node.signal(Signal::CONT);
    browser.until(LIVE).await?;
    assert!(browser.is_the_same().await?, "it was loaded again");
    Ok(())
}

#[tokio::test]
async fn a_page_that_is_refused_tries_again_until_there_is_room() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let node = stage.node("60s", "a", &[]).await?;
    let follow = "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut streams = Vec::new();
    loop {
        assert!(streams.len() < 500, "as many as anybody likes");
        let mut stream = idle(node.at, follow).await?;
        let mut start = [0; 12];
        tokio::time::timeout(SOON, stream.read_exact(&mut start)).await??;
        if start.ends_with(b"503") {
            break;
        }
        streams.push(stream);
    }
    let url = serde_json::json!({ "url": format!("http://{}/", node.at) });
    browser.call("Page.navigate", url).await?;
    browser.until(LOST).await?;
    browser.evaluate("window.stillTheSame = true").await?;
    drop(streams);
    browser.until(LIVE).await?;
    browser.until_leads("team/e", "a").await?;
    assert!(browser.is_the_same().await?, "it was loaded again");
    Ok(())
}

#[tokio::test]
async fn page_of_a_node_that_lost_etcd_warns_of_old_data() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let leader = stage.node("3s", "a", &[]).await?;
    answers(leader.at, "/leader", 200).await?;
    // The node keeps waiting even if its session ends, so the page shows no notice.
    let node = stage.node("3s", "b", &[]).await?;
    browser.open(node.at).await?;
    let notice = async |browser: &mut Browser| browser.texts(".notice:not([hidden])").await;
    eventually(SOON, "no notice", async || {
        notice(&mut browser).await.ok()?.is_empty().then_some(())
    })
    .await?;
    stage.etcd.pause();
    let shown = eventually(SOON, "a notice", async || {
        notice(&mut browser).await.ok()?.pop()
    })
    .await;
    stage.etcd.resume();
    assert_eq!(
        shown?,
        "This node's session with etcd is lost. This view may be old."
    );
    eventually(SOON, "no notice any more", async || {
        notice(&mut browser).await.ok()?.is_empty().then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn page_of_an_observing_node_shows_the_time_of_etcds_last_confirmation() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let node = stage.node("2s", "a", &["--observe"]).await?;
    browser.open(node.at).await?;
    let shown = async |browser: &mut Browser, what: &str| {
        browser.texts(&format!("{what}:not([hidden])")).await
    };
    stage.etcd.pause();
    let heard = eventually(SOON, "how old it is", async || {
        shown(&mut browser, ".heard").await.ok()?.pop()
    })
    .await?;
    assert!(
        heard.starts_with("last heard from etcd ") && heard.ends_with(" s ago"),
        "{heard}"
    );
    assert_eq!(
        shown(&mut browser, ".notice").await?,
        ["etcd does not answer this node. This view may be old."]
    );
    eventually(SOON, "it grows older", async || {
        let now = shown(&mut browser, ".heard").await.ok()?.pop()?;
        (now != heard).then_some(())
    })
    .await?;
    stage.etcd.resume();
    eventually(SOON, "it is fresh again", async || {
        let heard = shown(&mut browser, ".heard").await.ok()?;
        let notice = shown(&mut browser, ".notice").await.ok()?;
        (heard.is_empty() && notice.is_empty()).then_some(())
    })
    .await?;
    Ok(())
}

/// The page contradicts neither `/leader` nor the log of its node, and afterwards the terms show the time without a leader.
#[tokio::test]
async fn page_shows_a_node_with_an_expired_term_as_last_known_leader() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let node = stage.node("3s", "a", &["--grace", "400ms"]).await?;
    answers(node.at, "/leader", 200).await?;
    browser.open(node.at).await?;
    browser.until_leads(ELECTION, "a").await?;
    let colour = "getComputedStyle(document.querySelector('.leader strong')).color";
    let green = browser.evaluate(colour).await?;
    stage.etcd.pause();
    let known = "document.querySelector('.leader')?.textContent === 'a is the last known leader'";
    browser.until(known).await?;
    answers(node.at, "/leader", 503).await?;
    assert_ne!(browser.evaluate(colour).await?, green);
    for green in [".vacant", "tr.leads", ".badge.lead", ".track .now"] {
        assert_eq!(browser.texts(green).await?, [""; 0], "{green}");
    }
    let silent = "document.body.dataset.connection === 'silent' && document.title === '? team/e'";
    browser.until(silent).await?;
    let since = browser.texts(".since").await?.concat();
    let until = browser.texts(".terms td:nth-child(4)").await?.concat();
    for said in [&since, &until] {
        assert!(
            said.ends_with(", by its own clock; unknown since"),
            "{said}"
        );
    }
    assert!(since.starts_with("until "), "{since}");
    let width = |kind: &str| format!("document.querySelector('.track .{kind}')?.offsetWidth > 0");
    browser.until(&width("unknown")).await?;
    stage.etcd.resume();
    browser.until_leads(ELECTION, "a").await?;
    browser.until(LIVE).await?;
    let ended = browser.texts(".terms td:nth-child(4)").await?;
    assert_eq!(ended[0], "now");
    browser.until(&width("gap")).await?;
    let gaps = get(node.at, "/v1/elections/team%2Fe").await?.json();
    let terms = gaps["terms"].as_array().ok_or("terms")?;
    let [.., before, now] = &terms[..] else {
        panic!("{gaps}")
    };
    let vacant = now["began_unix_ms"]
        .as_u64()
        .zip(before["ended_unix_ms"].as_u64());
    let vacant = vacant.map(|(began, ended)| began - ended);
    assert!(vacant > Some(100), "{gaps}");
    assert_eq!(browser.complaints(), [""; 0]);
    Ok(())
}
