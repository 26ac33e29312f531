//! Tests `eldest run --partitions`: each partition has one program at a time, whatever happens to its node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use eldest_fixtures::wait::until;
use eldest_testing::eventually;
use etcd_client::GetOptions;

use crate::stage::{Node, Result, Stage, TAKEOVER};

const COUNT: usize = 4;
/// Leaves room for a grace period in which a program can write its last line even on a busy machine.
const TTL: Duration = Duration::from_secs(5);
const GRACE: &str = "2s";

/// Writes "overlap" if the partition's last program is alive.
const BEGIN: &str = "last=DIARY-$ELDEST_PARTITION; \
    if [ -e $last ] && kill -0 $(cat $last) 2>/dev/null; then echo overlap >> DIARY; fi; echo $$ > $last; \
    say() { echo $1 $ELDEST_PARTITION/$ELDEST_PARTITION_COUNT $ELDEST_ID $ELDEST_FENCING_TOKEN >> DIARY; }; ";
const POLITE: &str = "trap 'say end; exit 0' TERM; say begin; while :; do sleep 0.02; done";

fn node(stage: &Stage, name: &str, options: &[&str], script: &str) -> Result<Node> {
    let count = COUNT.to_string();
    let run = [
        "run",
        "--partitions",
        "shards",
        "--grace",
        GRACE,
        "--count",
        &count,
    ];
    let script = format!("{BEGIN}{script}");
    stage.scripted(TTL, name, &[&run, options].concat(), &script)
}

/// A line that a program wrote.
#[derive(Debug)]
struct Note {
    word: String,
    partition: String,
    node: String,
    token: i64,
}

fn notes(stage: &Stage) -> Vec<Note> {
    let note = |line: &String| {
        let mut words = line.split(' ').map(str::to_owned);
        Some(Note {
            word: words.next()?,
            partition: words.next()?,
            node: words.next()?,
            token: words.next()?.parse().ok()?,
        })
    };
    let lines = stage.diary().lines();
    assert!(
        !lines.iter().any(|line| line == "overlap"),
        "two leaders: {lines:?}"
    );
    lines.iter().filter_map(note).collect()
}

/// Waits until the programs of a node have written that word for so many partitions.
async fn say(stage: &Stage, node: &str, word: &str, wanted: usize) -> Result {
    let what = format!("{wanted} partitions of {node} say {word}");
    let said = eventually(TAKEOVER, what, async || {
        let notes = notes(stage);
        let of = notes.iter().filter(|n| n.node == node && n.word == word);
        let of: BTreeSet<&String> = of.map(|note| &note.partition).collect();
        (of.len() >= wanted).then_some(())
    });
    Ok(said.await?)
}

/// Asserts that each program of a partition ended before the next began, under a larger token. If the node lost only
/// the lock of its programs, they begin again under the same token.
fn judge(notes: &[Note]) {
    let mut last: BTreeMap<&str, &Note> = BTreeMap::new();
    for note in notes {
        let before = last.insert(&note.partition, note);
        match (note.word.as_str(), before) {
            ("begin", None) => {}
            ("begin", Some(before)) => {
                let is_again = (&before.node, before.token) == (&note.node, note.token);
                let is_later = before.token < note.token;
                assert!(before.word == "end" && (is_later || is_again), "{notes:?}");
            }
            (_, before) => assert!(before.is_some_and(|b| b.token == note.token), "{notes:?}"),
        }
    }
}

async fn keys(stage: &Stage) -> Result<usize> {
    Ok(stage.keys("eldest/~partitions/").await?.len())
}

#[tokio::test]
async fn a_partition_s_program_ends_before_it_begins_on_another_node() -> Result {
    let stage = Stage::new().await?;
    let mut a = node(&stage, "a", &[], POLITE)?;
    say(&stage, "a", "begin", COUNT).await?;
    // The capacity of "a" is one, so "b" takes three of four.
    let mut b = node(&stage, "b", &["--capacity", "3"], POLITE)?;
    say(&stage, "b", "begin", 3).await?;
    assert_eq!(a.stop().await?.code(), Some(0));
    say(&stage, "b", "begin", COUNT).await?;
    assert_eq!(b.stop().await?.code(), Some(0));
    let notes = notes(&stage);
    judge(&notes);
    let count = |word| notes.iter().filter(|note| note.word == word).count();
    assert!(count("begin") >= 2 * COUNT, "{notes:?}");
    assert_eq!(count("begin"), count("end"), "each program ended");
    assert_eq!(keys(&stage).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_stopped_node_keeps_its_partitions_until_all_programs_have_ended() -> Result {
    let stage = Stage::new().await?;
    let slow =
        "trap 'say asked; sleep 3; say end; exit 0' TERM; say begin; while :; do sleep 0.02; done";
    let mut a = node(&stage, "a", &["--stop-timeout", "60s"], slow)?;
    say(&stage, "a", "begin", COUNT).await?;
    a.signal(rustix::process::Signal::TERM);
    say(&stage, "a", "asked", COUNT).await?;
    assert_eq!(a.end().await?.code(), Some(0));
    // Longer than the grace period, which is the time that a program has once its key is to be released.
    let ended = notes(&stage);
    let ended = ended.iter().filter(|note| note.word == "end").count();
    assert_eq!(ended, COUNT);
    assert_eq!(keys(&stage).await?, 0);
    Ok(())
}

/// Starts a node that prepares for each partition until a file exists, and hands over when it is stopped.
fn preparing_node(stage: &Stage, name: &str) -> Result<Node> {
    let ready = stage.path(&format!("{name}-is-ready"));
    let prepare = format!(
        "echo prepare $ELDEST_PARTITION/$ELDEST_PARTITION_COUNT $ELDEST_ID 0 >> DIARY; \
         while ! test -e {}; do sleep 0.02; done",
        ready.display()
    );
    let prepare = &stage.diary().filled(&prepare);
    let limits = ["--warm-within", "50m", "--hand-over-within", "50m"];
    let options = [&limits[..], &["--prepare", prepare]].concat();
    node(stage, name, &options, POLITE)
}

/// Starts two nodes, and stops the first, which owns all partitions. Returns both once the second prepares for each of them.
async fn while_handing_over(stage: &Stage) -> Result<(Node, Node)> {
    let a = preparing_node(stage, "a")?;
    say(stage, "a", "begin", COUNT).await?;
    let b = preparing_node(stage, "b")?;
    say(stage, "b", "prepare", COUNT / 2).await?;
    a.signal(rustix::process::Signal::TERM);
    say(stage, "b", "prepare", COUNT).await?;
    Ok((a, b))
}

#[tokio::test]
async fn a_stopped_node_runs_its_programs_until_the_next_owner_is_prepared() -> Result {
    let stage = Stage::new().await?;
    let (mut a, mut b) = while_handing_over(&stage).await?;
    let ended = |notes: &[Note]| notes.iter().any(|note| note.word == "end");
    assert!(!ended(&notes(&stage)), "{:?}", notes(&stage));
    std::fs::write(stage.path("b-is-ready"), "")?;
    say(&stage, "b", "begin", COUNT).await?;
    assert_eq!(a.end().await?.code(), Some(0));
    // No other node takes a partition, so it leaves at once.
    assert_eq!(b.stop().await?.code(), Some(0));
    let notes = notes(&stage);
    let notes: Vec<Note> = notes.into_iter().filter(|n| n.word != "prepare").collect();
    judge(&notes);
    assert_eq!(keys(&stage).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_second_signal_ends_the_hand_over_and_a_program_that_ends_needs_none() -> Result {
    let stage = Stage::new().await?;
    let (mut a, mut b) = while_handing_over(&stage).await?;
    a.signal(rustix::process::Signal::TERM);
    assert_eq!(a.end().await?.code(), Some(0));
    say(&stage, "a", "end", COUNT).await?;
    std::fs::write(stage.path("b-is-ready"), "")?;
    say(&stage, "b", "begin", COUNT).await?;
    let mut c = preparing_node(&stage, "c")?;
    say(&stage, "c", "prepare", COUNT / 2).await?;
    let program = std::fs::read_to_string(stage.path("notes-0"))?;
    let program = program.trim().parse()?;
    crate::processes::signal(program, rustix::process::Signal::TERM);
    assert_eq!(b.end().await?.code(), Some(0));
    c.signal(rustix::process::Signal::TERM);
    c.signal(rustix::process::Signal::TERM);
    c.end().await?;
    Ok(())
}

#[tokio::test]
async fn a_stopped_node_keeps_its_share_for_the_time_that_it_was_given() -> Result {
    let stage = Stage::new().await?;
    let mut a = node(&stage, "a", &["--keep-share-for", "1h"], POLITE)?;
    say(&stage, "a", "begin", COUNT).await?;
    let mut client = stage.client().await;
    let mut share = async || {
        let record = GetOptions::new().with_prefix();
        let read = client.get("eldest/~partitions/shards/4/k-", Some(record));
        let read = read.await.ok()?;
        Some(read.kvs().first()?.value_str().ok()?.to_owned())
    };
    let all = r#"{"identity":"a","kept_for_s":3600,"partitions":"0-3"}"#;
    eventually(TAKEOVER, "the share is recorded", async || {
        (share().await? == all).then_some(())
    })
    .await?;
    assert_eq!(a.stop().await?.code(), Some(0));
    assert_eq!(keys(&stage).await?, 1, "the record alone");
    assert_eq!(share().await.as_deref(), Some(all));
    Ok(())
}

#[tokio::test]
async fn program_that_ends_by_itself_ends_the_command_or_restarts() -> Result {
    let stage = Stage::new().await?;
    let failing = "say begin; if [ $ELDEST_PARTITION = 2 ]; then sleep 0.2; say end; exit 7; fi; \
        trap 'say end; exit 0' TERM; while :; do sleep 0.02; done";
    let mut a = node(&stage, "a", &[], failing)?;
    assert_eq!(a.end().await?.code(), Some(7));
    judge(&notes(&stage));
    assert_eq!(keys(&stage).await?, 0);
    let mut b = node(&stage, "b", &["--restart"], failing)?;
    let again = || {
        let notes = notes(&stage).into_iter();
        let begun = notes.filter(|n| n.node == "b" && n.word == "begin" && n.partition == "2/4");
        begun.count()
    };
    until(TAKEOVER, "it starts three times", async || again() >= 3).await?;
    assert_eq!(b.stop().await?.code(), Some(0));
    Ok(())
}
