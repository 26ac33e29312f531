//! Tests the page of an observing node: candidates and leaders change without a reload.

use eldest_fixtures::http::{answers, get, post};
use rustix::process::Signal;
use serde_json::Value;

use crate::browser::Browser;
use crate::shared::{ELECTION, Node, Result, Stage};

const STEP_DOWN: &str = "/v1/elections/team%2Fe/step_down";

/// Returns the roster of "team/e" as the page shows it: number, name, token.
async fn roster(browser: &mut Browser) -> Result<Vec<[String; 3]>> {
    let rows = "[...document.querySelectorAll('[data-election=\"team/e\"] .roster tbody tr')].map(row => \
        [row.cells[0].textContent, row.querySelector('.name').textContent, row.cells[2].textContent])";
    Ok(serde_json::from_value(browser.evaluate(rows).await?)?)
}

/// Returns the roster as the node's API answers it to programs.
async fn answered_roster(node: &Node) -> Result<Vec<[String; 3]>> {
    let answer = get(node.at, "/v1/elections/team%2Fe").await?.json();
    let members = answer["roster"].as_array().ok_or("a roster")?;
    let each = members.iter().map(|member| {
        let name = member["identity"].as_str().unwrap_or_default();
        [
            member["rank"].to_string(),
            name.to_owned(),
            member["fencing_token"].to_string(),
        ]
    });
    Ok(each.collect())
}

/// Returns the text of all elements within the section of "team/e" that match a selector.
async fn texts(browser: &mut Browser, selector: &str) -> Result<Vec<String>> {
    let within = format!("[data-election='team/e'] {selector}");
    browser.texts(&within).await
}

#[tokio::test]
async fn page_shows_candidates_and_leaders_live_without_a_reload() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let browser = &mut browser;
    let stage = Stage::new().await?;
    let place = ["address=10.0.0.1:80", "data_center=dc1"];
    let first = ["second", "--announce", place[0], "--announce", place[1]];
    let a = stage.node("3s", "a", &first).await?;
    answers(a.at, "/leader?election=team%2Fe", 200).await?;
    answers(a.at, "/leader?election=second", 200).await?;
    let b = stage.node("3s", "b", &[]).await?;
    let c = stage.node("3s", "c", &["second"]).await?;
    let observer = stage.node("60s", "d", &["second", "--observe"]).await?;
    browser.open(observer.at).await?;

    browser.until_leads(ELECTION, "a").await?;
    browser.until_leads("second", "a").await?;
    browser.until_count(".roster tbody tr", 5).await?;
    shows_a_leader(browser, &observer).await?;

    assert_eq!(post(a.at, STEP_DOWN).await?.status, 200);
    browser.until_leads(ELECTION, "b").await?;
    browser.until_leads("second", "a").await?;
    b.signal(Signal::KILL);
    browser.until_leads(ELECTION, "c").await?;
    let rows = |table: &str| format!("[data-election=\"team/e\"] .{table} tbody tr");
    browser.until_count(&rows("terms"), 3).await?;
    assert_eq!(texts(browser, ".terms .name").await?, ["c", "b", "a"]);
    browser.until_count(&rows("roster"), 2).await?;
    assert_eq!(roster(browser).await?, answered_roster(&observer).await?);
    draws_the_terms(browser).await?;

    // No candidate is there for a while.
    a.close().await?;
    c.close().await?;
    let vacant = "document.querySelector('[data-election=\"team/e\"].vacant .leader')?.textContent.trim() === 'nobody leads'";
    browser.until(vacant).await?;
    let since = "document.querySelector('[data-election=\"team/e\"] .since').textContent\
        .startsWith('for 1 s; the last leader was c, token ')";
    browser.until(since).await?;
    let _e = stage.node("3s", "e", &[]).await?;
    browser.until_leads(ELECTION, "e").await?;
    let gap = "Math.max(...[...document.querySelectorAll(\"[data-election='team/e'] .gap\")].map(gap => gap.offsetWidth))";
    let gap = browser.evaluate(gap).await?.as_i64();
    assert!(gap > Some(0), "the time is seen in which nobody led");

    assert!(browser.is_the_same().await?, "it was loaded again");
    assert_eq!(browser.complaints(), [""; 0]);
    asked_for_nothing_else(browser, &observer);
    Ok(())
}

/// Checks the page of "team/e", which a leads and b and c wait for.
async fn shows_a_leader(browser: &mut Browser, observer: &Node) -> Result {
    let seen = roster(browser).await?;
    assert_eq!(seen, answered_roster(observer).await?);
    let names: Vec<&str> = seen.iter().map(|[_, name, _]| &**name).collect();
    assert_eq!(names, ["a", "b", "c"], "in order of age");
    let tokens: Vec<i64> = seen.iter().filter_map(|row| row[2].parse().ok()).collect();
    assert!(tokens.len() == 3 && tokens.is_sorted(), "{tokens:?}");
    assert_eq!(
        browser.texts("[data-election] h2").await?,
        ["team/e", "second"]
    );
    let nested = browser.texts(".roster [data-election='team/e'] tr.leads .badge.lead");
    assert_eq!(nested.await?, [""; 0], "of another section");
    assert_eq!(texts(browser, "tr.leads .badge.lead").await?, ["leads"]);
    let said = texts(browser, ".roster tr.leads .said bdi").await?;
    assert_eq!(said, ["dc1", "10.0.0.1:80"]);
    // The leader's term began before the observer started.
    let since = "/^for \\d+ s, since .* by the leader's clock$/.test(document.querySelector('[data-election=\"team/e\"] .since').textContent)";
    browser.until(since).await?;
    let token = texts(browser, ".token").await?;
    assert_eq!(token, [format!("token {},", seen[0][2])]);
    assert_eq!(browser.texts("#connection").await?, ["live"]);
    assert_eq!(browser.texts("#eyes").await?, [", as seen by d"]);
    let own = texts(browser, ".own").await?;
    assert_eq!(own, ["This node only observes."]);
    let answer = get(observer.at, "/v1/elections/team%2Fe").await?.json();
    let endpoint = answer["endpoints"][0]["endpoint"]
        .as_str()
        .ok_or("an endpoint")?;
    // Both elections have one session, so there is one row.
    let row = browser.texts(".endpoints tbody td").await?;
    let used = "renewals, requests, observers: the only endpoint";
    assert_eq!(
        row,
        [endpoint, used, ""],
        "not measured: there is no choice"
    );
    Ok(())
}

/// Checks the timeline of "team/e": a lane for each leader, one term after the other, and one that has not ended.
async fn draws_the_terms(browser: &mut Browser) -> Result {
    assert_eq!(texts(browser, ".lane bdi").await?, ["c", "a", "b"]);
    let drawn = "[...document.querySelectorAll(\"[data-election='team/e'] .lane\")].map(lane => \
        [...lane.querySelectorAll('i:not(.gap)')].map(bar => [bar.className, bar.offsetLeft, bar.offsetWidth]))";
    let drawn = browser.evaluate(drawn).await?;
    let width = "document.querySelector('.track').offsetWidth";
    let width = browser.evaluate(width).await?.as_i64();
    let [c, a, b] = [0, 1, 2].map(|lane| &drawn[lane][0]);
    assert_eq!([&c[0], &a[0], &b[0]], ["now", "", ""], "{drawn}");
    let begin = |bar: &Value| bar[1].as_i64();
    let end = |bar: &Value| Some(begin(bar)? + bar[2].as_i64()?);
    // The tolerance is for whole pixels.
    let most = |at: Option<i64>| at.map(|at| at + 3);
    assert!(end(a) <= most(begin(b)), "{drawn}");
    assert!(end(b) < most(begin(c)), "{drawn}");
    assert!(most(end(c)) >= width, "{drawn} of {width:?}");
    Ok(())
}

fn asked_for_nothing_else(browser: &Browser, observer: &Node) {
    let own = format!("http://{}/", observer.at);
    let asked = browser.requested();
    let paths = asked.iter().filter_map(|url| url.strip_prefix(&own));
    let mut paths: Vec<&str> = paths.collect();
    paths.sort_unstable();
    let expected = ["", "page.css", "page.js", "v1/events", "v1/partitions"];
    assert_eq!(paths, expected, "{asked:?}");
    // The only `data:` URL is the icon, which is empty.
    let mut others = asked.iter().filter(|url| !url.starts_with(&own));
    assert!(others.all(|url| url == "data:,"), "{asked:?}");
}
