//! Tests the demo as its users start it: it keeps its promises, and leaves nothing behind however it ends.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use eldest_testing::Etcd;
use rustix::process::{Pid, Signal, kill_process};

/// The limit for events that take no longer than a moment on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);

struct Demo {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The output so far.
    text: String,
    /// The processes of the nodes that it named.
    nodes: Vec<u32>,
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_eldest-demo"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            output,
            text: String::new(),
            nodes: Vec::new(),
        }
    }

    /// Reads until a line contains `what`.
    fn until(&mut self, what: &str) {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert!(read > 0, "it ended before it said {what:?}:\n{}", self.text);
            if let Some((_, pid)) = line.split_once(", process ") {
                self.nodes.push(pid.trim().parse().unwrap());
            }
            self.text.push_str(&line);
            if line.contains(what) {
                return;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Returns the whole output and the exit status.
    fn end(mut self) -> (String, ExitStatus) {
        self.output.read_to_string(&mut self.text).unwrap();
        (self.text, self.child.wait().unwrap())
    }

    /// Returns `127.0.0.1:PORT` of the etcd that the demo started.
    fn etcd(&self) -> String {
        let after = self
            .text
            .split("http://")
            .nth(1)
            .expect("the title names it");
        after.split([',', ' ']).next().unwrap().to_owned()
    }
}

/// Waits until neither the nodes nor the etcd run.
fn nothing_is_left(nodes: &[u32], etcd: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The process that adopts the nodes may reap them late: a zombie counts as dead.
        let running = |pid: &&u32| {
            let stat =
                std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        let left: Vec<&u32> = nodes.iter().filter(running).collect();
        let serves = std::net::TcpStream::connect(etcd).is_ok();
        if left.is_empty() && !serves {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "nodes left: {left:?}; etcd serves: {serves}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_on_a_given_etcd_succeeds_and_leaves_no_key_or_lease() {
    let etcd = Etcd::start().await.unwrap();
    let endpoint = etcd.endpoint();
    let demo = Demo::start(&["--plain", "--endpoints", &endpoint]);
    let (text, status) = tokio::task::spawn_blocking(|| demo.end()).await.unwrap();
    assert!(status.success(), "{text}");
    assert_eq!(text.matches("\n   ok: ").count(), 6, "{text}");
    assert!(!text.contains('\x1b'), "plain lines have no colours");
    let mut client = etcd.client().await;
    let all = etcd_client::GetOptions::new().with_all_keys();
    assert_eq!(client.get("", Some(all)).await.unwrap().count(), 0);
    assert!(client.leases().await.unwrap().leases().is_empty());
}

#[test]
fn killed_demo_takes_its_nodes_with_it_even_frozen_ones() {
    let mut demo = Demo::start(&["--plain"]);
    demo.until("is frozen;");
    assert_eq!(demo.nodes.len(), 4, "three, and one once more");
    demo.signal(Signal::KILL);
    let (nodes, etcd) = (demo.nodes.clone(), demo.etcd());
    demo.end();
    nothing_is_left(&nodes, &etcd);
}

#[test]
fn an_interrupted_demo_ends_its_nodes_and_says_so() {
    let mut demo = Demo::start(&["--plain"]);
    demo.until("LEADS");
    demo.until("carol");
    demo.signal(Signal::INT);
    let (nodes, etcd) = (demo.nodes.clone(), demo.etcd());
    let (text, status) = demo.end();
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("interrupted"), "{text}");
    nothing_is_left(&nodes, &etcd);
}

#[test]
fn an_etcd_out_of_reach_is_a_failure_that_names_the_reason() {
    let output = Command::new(env!("CARGO_BIN_EXE_eldest-demo"))
        // The discard port, at which this machine runs no service.
        .args(["--endpoints", "127.0.0.1:9"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("connecting to etcd"), "{errors}");
}
