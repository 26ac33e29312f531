//! Takes the picture of the page in the guide.

use std::time::Duration;

use rustix::process::Signal;

use crate::browser::Browser;
use crate::caller::post;
use crate::stage::{Node, Result, Stage, answers};

const ELECTION: &str = "billing/scheduler";
const STEP_DOWN: &str = "/v1/elections/billing%2Fscheduler/step_down";
/// Names the file to write. Then it takes a minute, so that the terms have lengths that can be seen.
const FILE: &str = "ELDEST_PICTURE";
const LARGEST: usize = 150_000;
const NO_BROWSER: &str =
    "ELDEST_PICTURE needs a browser, and ELDEST_NO_CHROMIUM forbids it: unset ELDEST_NO_CHROMIUM";

async fn node(stage: &Stage, number: u8) -> Result<Node> {
    let id = format!("node{number}");
    let address = format!("address=10.0.{number}.17:8080");
    let place = format!("data_center=dc{number}");
    let own = ["serve", ELECTION, "--id", &id, "--grace", "400ms"];
    let listen = ["--listen", "127.0.0.1:0"];
    let announce = ["--announce", &address, "--announce", &place];
    let args = [&own[..], &listen, &announce].concat();
    stage.listening(&id, stage.command("4s", &args)).await
}

#[tokio::test]
async fn a_picture_of_three_nodes_and_their_terms_is_small_enough_for_the_guide() -> Result {
    let file = std::env::var_os(FILE);
    let Some(mut browser) = Browser::start().await? else {
        if file.is_some() {
            return Err(NO_BROWSER.into());
        }
        return Ok(());
    };
    // The one place where a length is wanted, and no condition.
    let lasts = async |seconds: u64| {
        if file.is_some() {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
    };
    let stage = Stage::new().await?;
    let node = async |number| node(&stage, number).await;
    let (a, c) = (node(1).await?, node(3).await?);
    answers(a.at, "/leader", 200).await?;
    let b = node(2).await?;
    browser.open(c.at).await?;
    browser.until_leads(ELECTION, "node1").await?;
    lasts(9).await;
    post(a.at, STEP_DOWN).await?;
    browser.until_leads(ELECTION, "node3").await?;
    lasts(14).await;
    post(c.at, STEP_DOWN).await?;
    browser.until_leads(ELECTION, "node2").await?;
    lasts(7).await;
    b.signal(Signal::KILL)?;
    browser.until_leads(ELECTION, "node1").await?;
    let b = node(2).await?;
    lasts(15).await;
    browser
        .until("document.querySelectorAll('.roster tbody tr').length === 3 && document.querySelectorAll('.terms tbody tr').length === 4")
        .await?;
    browser.resize(860, 200, 1.5).await?;
    browser.scheme("light").await?;
    let height = browser
        .tell("document.documentElement.scrollHeight")
        .await?;
    browser
        .resize(860, u32::try_from(height.as_u64().ok_or("a height")?)?, 1.5)
        .await?;
    let picture = browser.picture().await?;
    assert!(picture.starts_with(b"\x89PNG"));
    let width = picture[16..20].try_into().map(u32::from_be_bytes)?;
    assert_eq!(width, 860 * 3 / 2);
    assert!(
        (10_000..LARGEST).contains(&picture.len()),
        "{} bytes",
        picture.len()
    );
    if let Some(file) = file {
        std::fs::write(file, picture)?;
    }
    for node in [a, b, c] {
        node.stop().await?;
    }
    Ok(())
}
