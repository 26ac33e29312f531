//! Tests that a floating address is never at two nodes, each a network namespace, though `eldest run` is killed.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use eldest_testing::eventually;

use crate::after::{ENOUGH, LONGER};
use crate::stage::{ELECTION, Node, Result, SOON, Stage, TAKEOVER};

const ADDRESS: &str = "192.0.2.1";
/// The number of leaders that are killed.
const ROUNDS: usize = 3;

/// A network namespace. It ends with its process.
struct Site {
    process: Child,
    name: &'static str,
}

impl Site {
    /// Returns `None`, with a printed line, if this user or system cannot create one.
    async fn new(name: &'static str) -> Result<Option<Self>> {
        let script = "ip link set lo up && echo up && exec sleep 1000";
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let Ok(process) = command.spawn() else {
            println!("left out: no unshare");
            return Ok(None);
        };
        let mut site = Self { process, name };
        let ready = async || {
            if let Ok(Some(_)) = site.process.try_wait() {
                return Some(false);
            }
            let own = std::fs::read_to_string(site.table()).ok()?;
            (own.contains("127.0.0.1") && own != std::fs::read_to_string(OURS).ok()?)
                .then_some(true)
        };
        if eventually(SOON, "the namespace is there", ready).await? {
            return Ok(Some(site));
        }
        println!("left out: only root, with iproute2, can create a network namespace");
        Ok(None)
    }

    /// Returns the kernel's table of the addresses in the namespace.
    fn table(&self) -> String {
        format!("/proc/{}/net/fib_trie", self.process.id())
    }

    /// Returns the words that run a command of `ip` there.
    fn ip(&self, words: &str) -> String {
        let namespace = format!("/proc/{}/ns/net", self.process.id());
        format!("nsenter --net={namespace} ip {words}")
    }

    /// Starts a node whose program has the address.
    fn node(&self, stage: &Stage) -> Result<Node> {
        let up = self.ip(&format!("address replace {ADDRESS}/32 dev lo"));
        let up = format!("{up}; exec sleep 1000");
        let down = self.ip(&format!("address flush dev lo to {ADDRESS}"));
        let run = ["run", ELECTION, "--after", &down];
        let run = [&run, ENOUGH].concat();
        stage.scripted(LONGER, self.name, &run, &format!("set -e; {up}"))
    }
}

const OURS: &str = "/proc/self/net/fib_trie";

fn has_address(table: &str) -> bool {
    let table = std::fs::read_to_string(table).unwrap_or_default();
    table.contains(ADDRESS)
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Looks at both namespaces until the test has ended, and returns the number of times at which both had the address.
fn watch(tables: &[String; 2], done: &AtomicBool) -> u32 {
    let mut overlaps = 0;
    while !done.load(Ordering::Relaxed) {
        let [first, second] = tables;
        // The first is read again, because it may lose the address between two readings.
        let both = has_address(first) && has_address(second) && has_address(first);
        overlaps += u32::from(both);
        // An overlap lasts longer than the start of a process.
        std::thread::sleep(Duration::from_millis(1));
    }
    overlaps
}

/// A thread that looks at both namespaces until it is dropped or stopped.
struct Watcher {
    done: Arc<AtomicBool>,
    overlaps: Option<JoinHandle<u32>>,
}

impl Watcher {
    fn start(tables: [String; 2]) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&done);
        let overlaps = Some(std::thread::spawn(move || watch(&tables, &ends)));
        Self { done, overlaps }
    }

    fn stop(&mut self) -> Option<u32> {
        self.done.store(true, Ordering::Relaxed);
        self.overlaps.take()?.join().ok()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

#[tokio::test]
async fn floating_address_is_at_one_node_at_a_time_though_the_leader_is_killed() -> Result {
    let (Some(a), Some(b)) = (Site::new("a").await?, Site::new("b").await?) else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let mut watcher = Watcher::start([a.table(), b.table()]);
    let mut leading = a.node(&stage)?;
    let (mut here, mut there) = (&a, &b);
    for _ in 0..ROUNDS {
        let arrives = async || has_address(&here.table()).then_some(());
        eventually(TAKEOVER, "the address is there", arrives).await?;
        let waiting = there.node(&stage)?;
        stage.has_candidate(there.name).await?;
        leading.kill().await?;
        let moves = async || has_address(&there.table()).then_some(());
        eventually(TAKEOVER, "the address is at the next node", moves).await?;
        assert!(!has_address(&here.table()), "it is still at {}", here.name);
        leading = waiting;
        (here, there) = (there, here);
    }
    leading.stop().await?;
    assert!(!has_address(&here.table()), "it is left at {}", here.name);
    assert_eq!(
        watcher.stop(),
        Some(0),
        "times at which both had the address"
    );
    Ok(())
}
