//! What others announce is text in the page, whatever they write.

use std::time::Duration;

use eldest::{Announcement, Session, SessionOptions};

use crate::browser::Browser;
use crate::stage::{ELECTION, Result, Stage};

/// Would say so if it ran.
const RUNS: &str = "document.body.dataset.ran=1";

#[tokio::test]
async fn whatever_is_announced_is_shown_as_text_and_runs_nothing() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let rtl = "\u{202e}live\u{2067} \u{5e9}\u{5dc}\u{5d5}\u{5dd}".to_owned();
    let names = [
        format!("<script>{RUNS}</script>"),
        format!("\"'><img src=x onerror=\"{RUNS}\">"),
        rtl,
        "x".repeat(1000),
        "${document.body.dataset.ran=1} {{1+1}} &lt;b&gt; %3Cscript%3E".to_owned(),
    ];
    let mut standing = Vec::new();
    for name in &names {
        let about = Announcement::new(name)
            .address(format!("javascript:{RUNS}"))
            .data_center(format!("<svg onload=\"{RUNS}\">"))
            .metadata(
                "<b>",
                format!("</td></table><iframe srcdoc=\"<script>{RUNS}</script>\">"),
            );
        let options = SessionOptions::new(name).announce(about);
        let session = Session::connect(
            [stage.etcd.endpoint()],
            options.ttl(Duration::from_secs(60)),
        )
        .await?;
        let mut candidate = session.election(ELECTION)?.campaign().await?;
        if standing.is_empty() {
            let leadership = candidate.elected().await?;
            standing.push((session, candidate, Some(leadership)));
        } else {
            standing.push((session, candidate, None));
        }
    }
    let node = stage
        .node("60s", "onlooker", &["--observe", "<img src=x>"])
        .await?;
    browser.open(node.at).await?;
    browser
        .until("document.querySelectorAll('.roster tbody tr').length === 5")
        .await?;
    assert_eq!(browser.texts(".roster .name").await?, names);
    assert_eq!(browser.texts(".leader .name").await?, [&*names[0], ""]);
    let said = browser.texts(".roster tr.leads .said bdi").await?;
    assert_eq!(said[1], format!("javascript:{RUNS}"));
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(browser.texts("h2").await?, ["team/e", "<img src=x>"]);

    // A key in the way, whose name is text as well.
    let path = format!("eldest/{ELECTION}2/<img src=x onerror={RUNS}>");
    stage
        .etcd
        .client()
        .await
        .put(path, "<script>", None)
        .await?;
    let blocked = stage
        .node("60s", "of-another", &["--observe", "team/e2"])
        .await?;
    browser.open(blocked.at).await?;
    browser
        .until("document.querySelector('[data-election=\"team/e2\"] .notice')?.textContent.includes('<img src=x onerror=')")
        .await?;

    let made = "document.querySelectorAll('main :is(script, img, svg, iframe, a, b)').length";
    assert_eq!(browser.tell(made).await?, 0, "markup was made of it");
    assert!(
        browser.tell("document.body.dataset.ran").await?.is_null(),
        "it ran"
    );
    browser.open(node.at).await?;
    browser
        .until("document.querySelectorAll('.roster tbody tr').length === 5")
        .await?;
    assert_eq!(browser.tell(made).await?, 0, "markup was made of it");
    assert!(
        browser.tell("document.body.dataset.ran").await?.is_null(),
        "it ran"
    );
    // A name is kept to itself: what follows it stands where it stood, and the longest one does not fill the screen.
    let turned = "[...document.querySelectorAll('.roster .name')].every(one => getComputedStyle(one).unicodeBidi === 'isolate')";
    assert_eq!(browser.tell(turned).await?, true);
    let tallest =
        "Math.max(...[...document.querySelectorAll('.name')].map(one => one.offsetHeight))";
    assert!(browser.tell(tallest).await?.as_i64() < Some(100));
    let wide = "document.documentElement.scrollWidth - innerWidth";
    assert!(browser.tell(wide).await?.as_i64() <= Some(0));
    assert_eq!(browser.complaints(), [""; 0]);
    for (session, candidate, leadership) in standing {
        drop(leadership);
        drop(candidate);
        session.close().await?;
    }
    node.stop().await?;
    blocked.stop().await
}
