//! Takes the guide's pictures of the page: while all is well, and while etcd does not answer.

use std::path::PathBuf;
use std::time::Duration;

use eldest_fixtures::http::{answers, post};
use rustix::process::Signal;

use crate::browser::Browser;
use crate::shared::{Node, Result, Stage};

const ELECTION: &str = "billing/scheduler";
const PARTITIONS: &str = "billing/invoices=12";
const LOCAL: &str = "127.0.0.1:0";
const STEP_DOWN: &str = "/v1/elections/billing%2Fscheduler/step_down";
/// Names the folder to write to. If it is set, the test takes a minute, so that the terms have visible lengths.
/// `cargo xtask pictures` sets it.
const FOLDER: &str = "ELDEST_PICTURES";
const USUAL: &str = "status-page.png";
const OUTAGE: &str = "status-page-outage.png";
/// True if each of the three nodes owns four of the partitions.
const ALL_OWN: &str = "[...document.querySelectorAll('[data-partitions] tbody tr')].map(row => row.cells[2].textContent) \
    .join() === '4,4,4'";
/// The size in bytes that a picture must not reach, because every clone of the repository has it.
const LARGEST: usize = 256_000;
const NO_BROWSER: &str =
    "pictures need a browser, and ELDEST_NO_CHROMIUM forbids it: unset ELDEST_NO_CHROMIUM";

async fn node(stage: &Stage, number: u8) -> Result<Node> {
    let id = format!("node{number}");
    let address = format!("address=10.0.{number}.17:8080");
    let place = format!("data_center=dc{number}");
    let mut command = stage.command("4s", &["serve", ELECTION, "--id", &id]);
    command.args(["--listen", LOCAL, "--challenges-listen", LOCAL]);
    command.args(["--grace", "400ms", "--challenges", "2s"]);
    command.args(["--own", PARTITIONS]);
    command.args(["--announce", &address, "--announce", &place]);
    Node::listening(&id, command).await
}

/// Takes the picture of the whole page.
async fn picture(browser: &mut Browser) -> Result<Vec<u8>> {
    browser.resize(860, 200, 1.5).await?;
    let height = browser
        .evaluate("document.documentElement.scrollHeight")
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
    Ok(picture)
}

#[tokio::test]
async fn pictures_for_the_guide_are_small_enough() -> Result {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    let Some(mut browser) = Browser::start().await? else {
        if folder.is_some() {
            return Err(NO_BROWSER.into());
        }
        return Ok(());
    };
    // The only place that needs a length of time instead of a condition.
    let lasts = async |seconds: u64| {
        if folder.is_some() {
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
    b.signal(Signal::KILL);
    browser.until_leads(ELECTION, "node1").await?;
    let _b = node(2).await?;
    lasts(15).await;
    browser
        .until("document.querySelectorAll('.roster tbody tr').length === 3 && document.querySelectorAll('.terms tbody tr').length === 4")
        .await?;
    browser.until_count("#challenges tbody tr", 1).await?;
    browser.until(ALL_OWN).await?;
    browser.scheme("light").await?;
    let usual = picture(&mut browser).await?;
    // The leader's own page: its clock shows that its term is over.
    browser.open(a.at).await?;
    browser.until_leads(ELECTION, "node1").await?;
    stage.etcd.pause();
    let is_grey =
        "document.querySelector('.leader')?.textContent === 'node1 is the last known leader'";
    browser.until(is_grey).await?;
    lasts(6).await;
    let outage = picture(&mut browser).await?;
    stage.etcd.resume();
    browser
        .until("document.querySelector('.leader')?.textContent.endsWith(' leads')")
        .await?;
    if let Some(folder) = folder {
        std::fs::write(folder.join(USUAL), usual)?;
        std::fs::write(folder.join(OUTAGE), outage)?;
    }
    Ok(())
}
