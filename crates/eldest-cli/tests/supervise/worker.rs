//! Implements the program that nodes run in these tests, which records that it lives and reports any other running
//! worker.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::processes::{MARK, Seen, TOKEN, marked, now};

/// The variable that sets how a worker behaves: words, separated by commas.
pub(crate) const MANNERS: &str = "ELDEST_TEST_MANNERS";

const BEAT: Duration = Duration::from_millis(10);

/// Returns the file to which the workers of a stage write.
pub(crate) fn diary(folder: &Path) -> PathBuf {
    folder.join("diary")
}

/// A line that a worker wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) word: String,
    /// The time since boot.
    pub(crate) at: Duration,
    pub(crate) pid: i32,
    pub(crate) token: i64,
    pub(crate) rest: String,
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(5, ' ');
        Some(Self {
            word: words.next()?.to_owned(),
            at: Duration::from_nanos(words.next()?.parse().ok()?),
            pid: words.next()?.parse().ok()?,
            token: words.next()?.parse().ok()?,
            rest: words.next().unwrap_or_default().to_owned(),
        })
    }
}

/// Returns all lines that were written so far.
pub(crate) fn read(folder: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(diary(folder)).unwrap_or_default();
    text.lines().filter_map(Line::parse).collect()
}

/// Returns the arguments with which a node runs a worker.
pub(crate) fn command(folder: &Path, manners: &str) -> Vec<String> {
    let program = std::env::current_exe().expect("this program");
    [
        "/usr/bin/env",
        &format!("{MARK}={}", folder.display()),
        &format!("{MANNERS}={manners}"),
        &program.display().to_string(),
        "--exact",
        "--ignored",
        "--nocapture",
        "worker::the_worker",
    ]
    .map(str::to_owned)
    .to_vec()
}

struct Worker {
    folder: PathBuf,
    token: i64,
}

impl Worker {
    fn write(&self, word: &str, rest: &str) {
        let (at, pid) = (now().as_nanos(), std::process::id());
        let line = format!("{word} {at} {pid} {} {rest}\n", self.token);
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).open(diary(&self.folder));
        // One write keeps the lines of several workers apart.
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("the diary");
    }

    /// Reports each other live worker as an overlap, since both are alive now.
    fn report_others(&self) {
        let own = i32::try_from(std::process::id()).expect("a process id");
        for other in marked(&self.folder) {
            let token = other.variable(TOKEN).unwrap_or_default();
            let same = if self.token == 0 {
                other.pid == own
            } else {
                token == self.token.to_string()
            };
            if !same {
                let rest = format!("{} {token} {}", other.pid, other.arguments.join(" "));
                self.write("overlap", &rest);
            }
        }
    }
}

#[tokio::test]
#[ignore = "no test, but the program that the nodes of the other tests run"]
async fn the_worker() {
    let Some(folder) = std::env::var_os(MARK).map(PathBuf::from) else {
        return;
    };
    let token = std::env::var(TOKEN)
        .ok()
        .and_then(|token| token.parse().ok());
    let worker = Worker {
        folder,
        token: token.unwrap_or_default(),
    };
    let manners = std::env::var(MANNERS).unwrap_or_default();
    let manner = |wanted: &str| manners.split(',').any(|manner| manner == wanted);
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    worker.write("start", &std::env::var("ELDEST_ID").unwrap_or_default());
    worker.report_others();
    if manner("forks") {
        shell("sleep 1000 & sleep 1000 & wait");
    }
    if manner("setsid") {
        shell("exec setsid sleep 1000");
    }
    if manner("detached") {
        shell("(setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000 & wait' &) & wait");
    }
    if manner("storm") {
        // Each lives for a moment, in a session of its own, and leaves another behind.
        let script = worker.folder.join("storm");
        let text = "[ \"$1\" ] && : > \"$0.apart\"\nsleep 0.01\nsetsid /bin/sh \"$0\" apart &\n";
        std::fs::write(&script, text).expect("a script");
        shell(&format!("exec /bin/sh {}", script.display()));
    }
    worker.write("ready", "");
    let mut silent = manner("notifies");
    loop {
        tokio::select! {
            _ = terminate.recv() => {
                worker.write("term", "");
                if !manner("stubborn") {
                    std::process::exit(0);
                }
            }
            () = tokio::time::sleep(BEAT) => worker.write("beat", ""),
        }
        if silent && worker.folder.join("well").exists() {
            silent = false;
            notify("READY=1");
        }
        if worker.folder.join("crash").exists() {
            let _ = std::fs::remove_file(worker.folder.join("crash"));
            worker.write("crash", "");
            std::process::abort();
        }
    }
}

/// Sends a message to the abstract socket that the variable names, as programs of systemd do.
fn notify(message: &str) {
    let address = std::env::var("NOTIFY_SOCKET").expect("a socket");
    let name = address.strip_prefix('@').expect("an abstract one");
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    let socket = UnixDatagram::unbound().expect("a socket");
    let sent = socket.send_to_addr(message.as_bytes(), &address);
    sent.expect("somebody listens");
}

/// Starts a shell that nobody waits for.
fn shell(script: &str) {
    let started = Command::new("/bin/sh").args(["-c", script]).spawn();
    drop(started.expect("a shell"));
}

/// Returns the processes of a running worker, and those that it started.
pub(crate) fn of_token(folder: &Path, token: i64) -> Vec<Seen> {
    let mut seen = marked(folder);
    seen.retain(|process| process.variable(TOKEN) == Some(token.to_string()));
    seen
}
