//! The page of a node that looks on: who stands and who leads, as it changes, without being loaded anew.

use rustix::process::Signal;

use crate::browser::Browser;
use crate::caller::{get, post};
use crate::stage::{ELECTION, Node, Result, Stage, answers};

const RESIGN: &str = "/v1/elections/team%2Fe/resign";

/// Those of the roster of "team/e", as the page shows them: number, name, token.
async fn roster(browser: &mut Browser) -> Result<Vec<[String; 3]>> {
    let rows = "[...document.querySelectorAll('[data-election=\"team/e\"] .roster tbody tr')].map(row => \
        [row.cells[0].textContent, row.querySelector('.name').textContent, row.cells[2].textContent])";
    Ok(serde_json::from_value(browser.tell(rows).await?)?)
}

/// The same as the node tells it to programs.
async fn told(node: &Node) -> Result<Vec<[String; 3]>> {
    let told = get(node.at, "/v1/elections/team%2Fe").await?.json();
    let members = told["roster"].as_array().ok_or("a roster")?;
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

#[tokio::test]
async fn the_page_shows_who_stands_and_leads_and_keeps_up_without_being_loaded_anew() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let first = [
        "second",
        "--announce",
        "address=10.0.0.1:80",
        "--announce",
        "data_center=dc1",
    ];
    let a = stage.node("3s", "a", &first).await?;
    answers(a.at, "/leader?election=team%2Fe", 200).await?;
    answers(a.at, "/leader?election=second", 200).await?;
    let b = stage.node("3s", "b", &[]).await?;
    let c = stage.node("3s", "c", &["second"]).await?;
    let onlooker = stage.node("60s", "d", &["second", "--observe"]).await?;
    browser.open(onlooker.at).await?;

    browser.until_leads(ELECTION, "a").await?;
    browser.until_leads("second", "a").await?;
    browser
        .until("document.querySelectorAll('.roster tbody tr').length === 5")
        .await?;
    let seen = roster(&mut browser).await?;
    assert_eq!(seen, told(&onlooker).await?);
    let names: Vec<&str> = seen.iter().map(|[_, name, _]| &**name).collect();
    assert_eq!(names, ["a", "b", "c"], "in order of age");
    let tokens: Vec<i64> = seen.iter().filter_map(|row| row[2].parse().ok()).collect();
    assert!(tokens.len() == 3 && tokens.is_sorted(), "{tokens:?}");
    assert_eq!(browser.texts("h2").await?, ["team/e", "second"]);
    let leads = "[data-election='team/e'] tr.leads .badge.lead";
    assert_eq!(
        browser.texts(&format!(".roster {leads}")).await?,
        [""; 0],
        "of another section"
    );
    assert_eq!(browser.texts(leads).await?, ["leads"]);
    let said = "[data-election='team/e'] .roster tr.leads .said bdi";
    assert_eq!(browser.texts(said).await?, ["dc1", "10.0.0.1:80"]);
    let token = browser.texts("[data-election='team/e'] .token").await?;
    assert_eq!(token, [format!("token {},", seen[0][2])]);
    assert_eq!(browser.texts("#connection").await?, ["live"]);
    assert_eq!(browser.texts("#eyes").await?, [", as d sees it"]);
    assert_eq!(
        browser.texts("[data-election='team/e'] .own").await?,
        ["This node only looks on."]
    );

    assert_eq!(post(a.at, RESIGN).await?.status, 200);
    browser.until_leads(ELECTION, "b").await?;
    browser.until_leads("second", "a").await?;
    b.signal(Signal::KILL)?;
    browser.until_leads(ELECTION, "c").await?;
    browser
        .until(
            "document.querySelectorAll('[data-election=\"team/e\"] .terms tbody tr').length === 3",
        )
        .await?;
    assert_eq!(
        browser
            .texts("[data-election='team/e'] .terms .name")
            .await?,
        ["c", "b", "a"]
    );
    browser
        .until(
            "document.querySelectorAll('[data-election=\"team/e\"] .roster tbody tr').length === 2",
        )
        .await?;
    assert_eq!(roster(&mut browser).await?, told(&onlooker).await?);
    // The timeline: a lane for each, one after the other, and one term still goes on.
    let lanes = "[data-election='team/e'] .lane";
    assert_eq!(
        browser.texts(&format!("{lanes} bdi")).await?,
        ["c", "a", "b"]
    );
    let drawn = "[...document.querySelectorAll(\"[data-election='team/e'] .lane\")].map(lane => \
        [...lane.querySelectorAll('i:not(.gap)')].map(bar => [bar.className, bar.offsetLeft, bar.offsetWidth]))";
    let drawn = browser.tell(drawn).await?;
    let ([c_bar, a_bar, b_bar], width) = (
        [0, 1, 2].map(|lane| drawn[lane][0].clone()),
        browser
            .tell("document.querySelector('.track').offsetWidth")
            .await?,
    );
    assert_eq!(
        [&c_bar[0], &a_bar[0], &b_bar[0]],
        ["now", "", ""],
        "{drawn}"
    );
    let end = |bar: &serde_json::Value| {
        bar[1]
            .as_i64()
            .zip(bar[2].as_i64())
            .map(|(left, width)| left + width)
    };
    assert!(
        end(&a_bar) <= b_bar[1].as_i64().map(|left| left + 3),
        "{drawn}"
    );
    assert!(
        end(&b_bar) < c_bar[1].as_i64().map(|left| left + 3),
        "{drawn}"
    );
    assert!(
        end(&c_bar) >= width.as_i64().map(|width| width - 3),
        "{drawn} of {width}"
    );

    // Nobody is there for a while.
    a.stop().await?;
    c.stop().await?;
    let vacant = "document.querySelector('[data-election=\"team/e\"].vacant .leader')?.textContent.trim() === 'nobody leads'";
    browser.until(vacant).await?;
    let since = "document.querySelector('[data-election=\"team/e\"] .since').textContent";
    browser
        .until(&format!(
            "{since}.startsWith('for 1 s; the last one was c, token ')"
        ))
        .await?;
    let e = stage.node("3s", "e", &[]).await?;
    browser.until_leads(ELECTION, "e").await?;
    let gap = "Math.max(...[...document.querySelectorAll(\"[data-election='team/e'] .gap\")].map(gap => gap.offsetWidth))";
    assert!(
        browser.tell(gap).await?.as_i64() > Some(0),
        "the time is seen in which nobody led"
    );

    assert!(browser.is_the_same().await?, "it was loaded anew");
    assert_eq!(browser.complaints(), [""; 0]);
    let own = format!("http://{}/", onlooker.at);
    let asked = browser.requested();
    let mut paths: Vec<&str> = asked
        .iter()
        .filter_map(|url| url.strip_prefix(&own))
        .collect();
    paths.sort_unstable();
    assert_eq!(paths, ["", "page.css", "page.js", "v1/events"], "{asked:?}");
    // Of `data:` there is only the icon, which is empty.
    assert!(
        asked
            .iter()
            .all(|url| url.starts_with(&own) || url == "data:,"),
        "{asked:?}"
    );
    for node in [e, onlooker] {
        node.stop().await?;
    }
    Ok(())
}
