//! Tests that announcements stay text in the page, whatever they contain.

use std::time::Duration;

use eldest::fuzzing::TARGETS;
use eldest::{Announcement, Candidate, Session, SessionOptions};
use eldest_fixtures::damage::damaged;
use etcd_client::PutOptions;

use crate::browser::Browser;
use crate::shared::{ELECTION, Result, Stage};

/// A script that would leave a mark if it ran.
const RUNS: &str = "document.body.dataset.ran=1";

/// Joins under that name, and announces markup in every field.
async fn join(stage: &Stage, name: &str) -> Result<(Session, Candidate)> {
    let iframe = format!("</td></table><iframe srcdoc=\"<script>{RUNS}</script>\">");
    let about = Announcement::new(name)
        .with_address(format!("javascript:{RUNS}"))
        .with_data_center(format!("<svg onload=\"{RUNS}\">"))
        .with_metadata("<b>", iframe);
    let options = SessionOptions::new(name)
        .announcement(about)
        .ttl(Duration::from_secs(60));
    let session = Session::connect([stage.etcd.endpoint()], options).await?;
    let candidate = session.election(ELECTION)?.campaign().await?;
    Ok((session, candidate))
}

async fn nothing_ran(browser: &mut Browser) -> Result {
    let made = "document.querySelectorAll('main :is(script, img, svg, iframe, a, b)').length";
    assert_eq!(browser.evaluate(made).await?, 0, "markup was made of it");
    let ran = browser.evaluate("document.body.dataset.ran").await?;
    assert!(ran.is_null(), "it ran");
    Ok(())
}

#[tokio::test]
async fn announcements_are_shown_as_text_and_run_nothing() -> Result {
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
        standing.push(join(&stage, name).await?);
    }
    let leadership = standing[0].1.elected().await?;
    let looking = async |id: &str, election: &str| {
        let args = ["--observe", election];
        stage.node("60s", id, &args).await
    };
    let node = looking("observer", "<img src=x>").await?;
    browser.open(node.at).await?;
    browser.until_count(".roster tbody tr", 5).await?;
    assert_eq!(browser.texts(".roster .name").await?, names);
    assert_eq!(browser.texts(".leader .name").await?, [&*names[0], ""]);
    let said = browser.texts(".roster tr.leads .said bdi").await?;
    assert_eq!(said[1], format!("javascript:{RUNS}"));
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(
        browser.texts("[data-election] h2").await?,
        ["team/e", "<img src=x>"]
    );

    // A key without a lease blocks the election; its name is text as well.
    let path = format!("eldest/{ELECTION}2/\u{202e}<img src=x onerror={RUNS}>");
    let mut client = stage.etcd.client().await;
    client.put(&*path, "<script>", None).await?;
    let blocked = looking("of-another", "team/e2").await?;
    browser.open(blocked.at).await?;
    browser
        .until("document.querySelector('[data-election=\"team/e2\"] .notice')?.textContent.includes('<img src=x onerror=')")
        .await?;
    assert_eq!(browser.texts(".notice bdi").await?, [path]);
    nothing_ran(&mut browser).await?;
    browser.open(node.at).await?;
    browser.until_count(".roster tbody tr", 5).await?;
    nothing_ran(&mut browser).await?;
    // Each name is isolated: the text after it keeps its place, and the longest name does not fill the screen.
    let turned = "[...document.querySelectorAll('.roster .name')].every(one => getComputedStyle(one).unicodeBidi === 'isolate')";
    assert_eq!(browser.evaluate(turned).await?, true);
    let tallest =
        "Math.max(...[...document.querySelectorAll('.name')].map(one => one.offsetHeight))";
    assert!(browser.evaluate(tallest).await?.as_i64() < Some(100));
    let wide = "document.documentElement.scrollWidth - innerWidth";
    assert!(browser.evaluate(wide).await?.as_i64() <= Some(0));
    assert_eq!(browser.complaints(), [""; 0]);
    drop(leadership);
    for (session, candidate) in standing {
        drop(candidate);
        session.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn nodes_of_one_name_are_not_mixed_up_and_no_name_turns_the_text_after_it() -> Result {
    const TWIN: &str = "\u{202e}twin";
    const BADGES: &str = ".roster .badge:not(.lead)";
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let (session, candidate) = join(&stage, TWIN).await?;
    let observer = stage.node("60s", TWIN, &["--observe"]).await?;
    browser.open(observer.at).await?;
    browser.until_count(".roster tbody tr", 1).await?;
    assert_eq!(browser.texts(BADGES).await?, [""; 0], "it only observes");
    let title = browser.evaluate("document.title").await?;
    assert_eq!(title, format!("\u{fffd}twin leads {ELECTION}"));

    let second = stage.node("60s", TWIN, &[]).await?;
    browser.open(second.at).await?;
    browser.until_count(BADGES, 1).await?;
    let own = "document.querySelector('.roster tr:has(.badge:not(.lead)) td').textContent";
    assert_eq!(
        browser.evaluate(own).await?,
        "2",
        "the older one is another"
    );

    browser.open(observer.at).await?;
    browser.until_count(".roster tbody tr", 2).await?;
    second.close().await?;
    drop(candidate);
    session.close().await?;
    browser.until_count(".since bdi", 1).await?;
    assert_eq!(browser.texts(".since bdi").await?, [TWIN]);
    Ok(())
}

/// The number of rows, and how many of them say that they cannot be shown.
const ROWS: &str = "[...document.querySelectorAll('.roster tbody tr')].map(row => row.textContent.includes('cannot be shown'))";

#[tokio::test]
async fn every_candidate_has_a_row_despite_odd_announcements() -> Result {
    const CANDIDATES: usize = 200;
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let (seed, mut client) = (fastrand::u64(..), stage.etcd.client().await);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let target = TARGETS.iter().find(|target| target.name == "announcement");
    let examples = target.ok_or("no such target")?.seeds;
    let moments = [
        "8640000000000001",
        "18446744073709551615",
        "253402300800000",
        "-1",
        "1e300",
    ];
    let dated =
        moments.map(|ms| format!(r#"{{"identity":"a","since_unix_ms":{ms}}}"#).into_bytes());
    let noise = (dated.len()..CANDIDATES).map(|_| damaged(&mut rng, examples));
    let lease = client.lease_grant(60, None).await?.id();
    for (number, value) in dated.into_iter().chain(noise).enumerate() {
        let key = format!("eldest/{ELECTION}/{number:03}");
        let options = PutOptions::new().with_lease(lease);
        client.put(key, value, Some(options)).await?;
    }
    let mark = format!("eldest/~evacuated/{}", "x".repeat(500));
    client
        .put(mark, r#"{"until_unix_ms":18446744073709551615}"#, None)
        .await?;
    let node = stage.node("60s", "observer", &["--observe"]).await?;
    browser.open(node.at).await?;
    browser.until_count(".roster tbody tr", CANDIDATES).await?;
    let failed = browser.evaluate(ROWS).await?;
    let failed = failed
        .as_array()
        .ok_or("rows")?
        .iter()
        .filter(|row| **row != false);
    assert_eq!(failed.count(), 0, "every row is shown");
    browser
        .until("document.getElementById('connection').textContent === 'live'")
        .await?;
    // A value that cannot be shown does not hide the rest.
    let late = "{ leader: null, own: {}, evacuations: [] }, 0";
    let rows = format!(
        "each([8640000000000001, 1], 'tr', (since) => row({{ identity: 'x', rank: 1, metadata: {{}}, since_unix_ms: since }}, {late}))"
    );
    let texts = format!("{rows}.map((row) => row.textContent.includes('cannot be shown'))");
    assert_eq!(
        browser.evaluate(&texts).await?,
        serde_json::json!([true, false])
    );
    assert_eq!(browser.complaints(), [""; 0]);
    Ok(())
}
