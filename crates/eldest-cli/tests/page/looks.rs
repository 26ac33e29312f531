//! Tests the page in narrow and dark windows, with the keyboard, and for screen readers.

use eldest_fixtures::http::{answers, post};
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::shared::{Node, Result, Stage};

/// Returns, for each visible text, the contrast to its background (WCAG 2), the lowest first.
pub(crate) const CONTRASTS: &str = r"(() => {
    const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (one) => {
        for (let at = one; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const texts = [...document.querySelectorAll('body *')].filter((one) =>
        one.checkVisibility() && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== ''));
    return texts.map((one) => {
        const [a, b] = [light(parse(getComputedStyle(one).color)), light(behind(one))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        return [ratio, `${one.tagName}.${one.className} ${one.textContent}`];
    }).sort(([a], [b]) => a - b);
})()";

/// Counts the changes within the live regions while the time of the leader's term changes twice.
const CHANGES: &str = "new Promise(done => { let changes = 0; \
    const eye = new MutationObserver(all => { changes += all.length; }); \
    document.querySelectorAll('[aria-live], [role=status], [role=alert]').forEach(one => \
        eye.observe(one, { childList: true, characterData: true, subtree: true })); \
    let before = document.querySelector('.since').textContent, rounds = 0; \
    const look = () => { const now = document.querySelector('.since').textContent; \
        if (now !== before) { before = now; rounds += 1; } \
        if (rounds < 2) requestAnimationFrame(look); else done(changes); }; look(); })";

async fn led_by_turns(stage: &Stage, terms: usize) -> Result<[Node; 2]> {
    let a = stage
        .node("60s", "node-with-a-long-name-a", &["--grace", "50ms"])
        .await?;
    answers(a.at, "/leader", 200).await?;
    let b = stage
        .node("60s", "node-with-a-long-name-b", &["--grace", "50ms"])
        .await?;
    for term in 1..terms {
        let (leader, next) = if term % 2 == 1 { (&a, &b) } else { (&b, &a) };
        answers(leader.at, "/leader", 200).await?;
        answers(next.at, "/ready", 200).await?;
        post(leader.at, "/v1/elections/team%2Fe/step_down").await?;
        answers(next.at, "/leader", 200).await?;
    }
    Ok([a, b])
}

#[tokio::test]
async fn the_page_fits_narrow_windows_and_can_be_read_in_both_schemes() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let [_a, b] = led_by_turns(&stage, 3).await?;
    browser.open(b.at).await?;
    browser
        .until("document.querySelectorAll('.terms tbody tr').length >= 2")
        .await?;
    for width in [320, 360, 768, 1280] {
        browser.resize(width, 800, 1.0).await?;
        let beyond = "[document.documentElement.scrollWidth - innerWidth, [...document.querySelectorAll('body *')]\
            .filter(one => one.getBoundingClientRect().right > innerWidth + 1 && one.checkVisibility()).map(one => one.outerHTML)]";
        let beyond = browser.evaluate(beyond).await?;
        assert!(beyond[0].as_i64() <= Some(0), "{width}: {beyond}");
        assert_eq!(beyond[1], json!([]), "{width}");
    }
    let mut backs = Vec::new();
    for scheme in ["light", "dark"] {
        browser.scheme(scheme).await?;
        // The page is checked in its normal state and in a failed one.
        for state in ["live", "lost"] {
            let set = format!(
                "document.body.dataset.connection = {state:?}; document.querySelector('.notice').hidden = false"
            );
            browser.evaluate(&set).await?;
            let contrasts = browser.evaluate(CONTRASTS).await?;
            let worst = &contrasts[0];
            assert!(contrasts.as_array().map(Vec::len) > Some(20), "{contrasts}");
            assert!(worst[0].as_f64() >= Some(4.5), "{scheme}, {state}: {worst}");
        }
        backs.push(
            browser
                .evaluate("getComputedStyle(document.body).backgroundColor")
                .await?,
        );
    }
    assert_ne!(backs[0], backs[1], "the schemes differ");
    Ok(())
}

/// Returns everything that a screen reader receives: role, name and text below.
async fn read_aloud(browser: &mut Browser) -> Result<Vec<(String, String, Value)>> {
    browser.call("Accessibility.enable", json!({})).await?;
    let tree = browser
        .call("Accessibility.getFullAXTree", json!({}))
        .await?;
    let nodes = tree["nodes"].as_array().ok_or("nodes")?;
    let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
    let heard = nodes.iter().filter(|node| node["ignored"] != true);
    Ok(heard
        .map(|node| {
            (
                text(&node["role"]),
                text(&node["name"]),
                node["properties"].clone(),
            )
        })
        .collect())
}

#[tokio::test]
async fn page_works_with_a_screen_reader_and_without_a_mouse() -> Result {
    let Some(mut browser) = Browser::start().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let observer = stage.node("60s", "observer", &["--observe"]).await?;
    browser.open(observer.at).await?;
    browser
        .until("document.querySelector('section').classList.contains('vacant')")
        .await?;
    let _both = led_by_turns(&stage, 8).await?;
    browser
        .until("!document.querySelector('.more').hidden && document.querySelector('.more').textContent === 'show all 8 terms'")
        .await?;
    is_heard(&mut browser).await?;
    // Changes of time alone are not announced: the live regions stay the same until the leader changes.
    assert_eq!(browser.evaluate(CHANGES).await?, 0);
    is_used_by_keys(&mut browser).await?;
    assert_eq!(browser.complaints(), [""; 0]);
    Ok(())
}

/// Checks that a screen reader finds headings, tables and regions, and is notified of changes.
async fn is_heard(browser: &mut Browser) -> Result {
    let heard = read_aloud(browser).await?;
    let of = |role: &str| -> Vec<&str> {
        let found = heard.iter().filter(|(found, ..)| found == role);
        found.map(|(_, name, _)| name.as_str()).collect()
    };
    let headings = of("heading").join(", ");
    assert_eq!(
        headings,
        "eldest, as seen by observer, etcd, team/e, Candidates, Terms"
    );
    let tables = [
        "Endpoints of etcd that this node knows",
        "Candidates, eldest first",
        "Last terms, newest first",
    ];
    assert_eq!(of("table"), tables);
    let headers = "endpoint used for round trip # node token in queue token node from until lasted";
    assert_eq!(of("columnheader").join(" "), headers);
    assert_eq!(of("region"), ["Election team/e"]);
    assert_eq!(
        ["main", "banner", "status"].map(|role| of(role).len()),
        [1; 3]
    );
    let lives = heard.iter().filter(|(.., properties)| {
        let mut properties = properties.as_array().into_iter().flatten();
        properties
            .any(|property| property["name"] == "live" && property["value"]["value"] == "polite")
    });
    assert!(
        lives.count() >= 2,
        "changes of the leader and of the connection are read out"
    );
    let html = browser.evaluate("document.documentElement.lang").await?;
    assert_eq!(html, "en");
    Ok(())
}

/// Checks that keys reach and press the button that shows all terms, and that it keeps the focus.
async fn is_used_by_keys(browser: &mut Browser) -> Result {
    let active = "document.activeElement.className";
    assert_eq!(browser.texts(".terms tbody tr").await?.len(), 6);
    browser.press("Tab", 9, "").await?;
    assert_eq!(browser.evaluate(active).await?, "more");
    browser.press("Enter", 13, "\r").await?;
    browser.until_count(".terms tbody tr", 8).await?;
    assert_eq!(browser.evaluate(active).await?, "more");
    let expanded = "document.activeElement.ariaExpanded";
    assert_eq!(browser.evaluate(expanded).await?, "true");
    browser.press("Enter", 13, "\r").await?;
    browser.until_count(".terms tbody tr", 6).await
}
