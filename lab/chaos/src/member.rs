//! Controls the process of one node: starts it with its settings, sends it signals and orders, and reads its log.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use eldest_testing::{Process, WallClock, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::certificates::Certificates;
use crate::links::Links;
use crate::wide::Wide;
use crate::wire::Wire;
use crate::{NODE, Result, Settings, users};

/// The interval, in seconds, at which the fenced counter is raised.
const PACE: &str = "0.1";

/// A node, which may run or not.
pub(crate) struct Member {
    pub(crate) name: String,
    /// The file of its history.
    pub(crate) history: PathBuf,
    /// The folder of the node's files.
    folder: PathBuf,
    /// The folder of the whole run.
    whole: PathBuf,
    /// The identity with which the node campaigns.
    identity: String,
    endpoints: String,
    /// The address at which it listens for signs of life, and the one that it advertises.
    port: [String; 2],
    /// The words before the program's name in its command.
    through: Vec<OsString>,
    /// The round trip to the servers, if the node is to be configured for it.
    round_trip: Option<Duration>,
    register: PathBuf,
    election: String,
    /// The variables that name the files of its certificates, if it uses TLS.
    certificates: Vec<(&'static str, PathBuf)>,
    /// The socket of the agent that guards it, if there is one.
    guard: Option<PathBuf>,
    /// The wall clock that its processes see, if it is not the machine's.
    pub(crate) clock: Option<WallClock>,
    process: RefCell<Option<Process>>,
    paused: Cell<bool>,
    /// The number of its processes that have ended.
    ended: Cell<usize>,
}

/// Settings that all nodes share.
pub(crate) struct Common<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) register: &'a Path,
    pub(crate) election: &'a str,
    pub(crate) guard: Option<&'a Path>,
    pub(crate) certificates: Option<&'a Certificates>,
    /// True if each has a wall clock of its own.
    pub(crate) clocks: bool,
}

impl Member {
    pub(crate) fn new(
        common: &Common<'_>,
        name: &str,
        identity: &str,
        endpoints: String,
    ) -> Result<Self> {
        let folder = common.folder.join(name);
        std::fs::create_dir(&folder)?;
        Ok(Self {
            name: name.to_owned(),
            history: folder.join("history.jsonl"),
            folder,
            whole: common.folder.to_owned(),
            identity: identity.to_owned(),
            endpoints,
            port: ["127.0.0.1:0".to_owned(), String::new()],
            through: Vec::new(),
            round_trip: None,
            register: common.register.to_owned(),
            election: common.election.to_owned(),
            certificates: common
                .certificates
                .map_or_else(Vec::new, |all| all.environment(name)),
            guard: common.guard.map(Path::to_owned),
            clock: common.clocks.then(WallClock::new).transpose()?,
            process: RefCell::default(),
            paused: Cell::new(false),
            ended: Cell::new(0),
        })
    }

    /// Makes the node of that number, with links of its own.
    pub(crate) fn near(common: &Common<'_>, number: usize, links: &Links) -> Result<Self> {
        let name = format!("n{}", number + 1);
        Ok(Self {
            port: links.port(),
            ..Self::new(common, &name, &name, links.endpoints(number))?
        })
    }

    /// Makes the node of that number in a data centre, one of those that the nodes are spread over. It prefers the
    /// server there, if there is one near, and then those of the next ones.
    pub(crate) fn far(
        common: &Common<'_>,
        number: usize,
        mut endpoints: Vec<String>,
        (far, wire): (&Wide, &Wire),
    ) -> Result<Self> {
        let site = number % endpoints.len();
        endpoints.rotate_left(site);
        if !far.near {
            endpoints.remove(0);
        }
        let name = format!("n{}", number + 1);
        Ok(Self {
            through: wire.sites()[site].command(),
            round_trip: far.preset.then_some(far.round_trip),
            ..Self::new(common, &name, &name, endpoints.join(","))?
        })
    }

    pub(crate) fn start(&self, settings: &Settings) -> Result {
        let log = |name: &str| {
            let mut options = File::options();
            options.create(true).append(true);
            options.open(self.folder.join(name))
        };
        let program = settings.program.as_os_str();
        let words: Vec<&OsStr> = self
            .through
            .iter()
            .map(OsString::as_os_str)
            .chain([program])
            .collect();
        let mut command = Command::new(words[0]);
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let (round_trip, ready) = (self.round_trip.map(seconds), settings.ready.map(seconds));
        command
            .args(&words[1..])
            .env("ROUND_TRIP_SECONDS", round_trip.unwrap_or_default())
            .env(NODE, "1")
            .env("ETCD_ENDPOINTS", &self.endpoints)
            .env("NODE_NAME", &self.identity)
            .env("ELECTION", &self.election)
            .env("TTL_SECONDS", settings.ttl.as_secs_f64().to_string())
            .env("READY_SECONDS", ready.unwrap_or_default())
            .env("LISTEN", "127.0.0.1:0")
            .env("HISTORY", &self.history)
            .env("HISTORY_NAME", &self.name)
            .env("PACE_SECONDS", PACE)
            .env("REGISTER", &self.register)
            .env(
                "CHALLENGES",
                settings.challenges.as_deref().unwrap_or_default(),
            )
            .env("CHALLENGES_LISTEN", &self.port[0])
            .env("CHALLENGES_ADVERTISE", &self.port[1])
            .env("ORDERS", self.orders())
            .env("GUARD", self.guard.as_deref().unwrap_or(Path::new("")))
            .env(
                "REGISTER_FENCED",
                if settings.fenced { "yes" } else { "no" },
            )
            .env("RUST_LOG", "eldest=debug")
            .env_remove("DATA_CENTER")
            .env_remove("ADVERTISE")
            .stdin(Stdio::null())
            .stdout(log("lines.txt")?)
            .stderr(log("log.txt")?);
        if settings.auth {
            command.env("ETCD_USER", &self.identity);
            command.env("ETCD_PASSWORD", users::PASSWORD);
        }
        command.envs(self.certificates.iter().cloned());
        if let Some(clock) = &self.clock {
            clock.apply_to(&mut command);
        }
        // If this process is killed, the files of the whole run may go, because nobody reads them any more.
        let process = Process::spawn(&mut command, &self.whole)?;
        *self.process.borrow_mut() = Some(process);
        self.paused.set(false);
        Ok(())
    }

    /// Returns true if the node runs and is not paused.
    pub(crate) fn is_up(&self) -> bool {
        self.runs() && !self.paused.get()
    }

    pub(crate) fn runs(&self) -> bool {
        self.process.borrow().is_some()
    }

    /// Kills the node; on return it is dead.
    pub(crate) fn kill(&self) {
        if let Some(process) = self.process.borrow_mut().take() {
            let pid = process.id();
            drop(process);
            if self.clock.is_some() {
                WallClock::forget(pid);
            }
            self.ended.set(self.ended.get() + 1);
        }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.borrow().as_ref().map(Process::id)
    }

    /// Returns how many of its processes have ended.
    pub(crate) fn ended_processes(&self) -> usize {
        self.ended.get()
    }

    /// Stops the node; on return it is stopped.
    pub(crate) fn pause(&self) {
        if let Some(process) = &*self.process.borrow() {
            process.pause();
            self.paused.set(true);
        }
    }

    pub(crate) fn resume(&self) {
        if let Some(process) = &*self.process.borrow() {
            self.paused.set(false);
            process.resume();
        }
    }

    /// Asks the node to end, and waits until it has; an error if it did not end, or ended with a failure.
    pub(crate) async fn stop(&self, patience: Duration) -> Result {
        if let Some(process) = &*self.process.borrow() {
            process.terminate();
        }
        let ended = self.ended(patience, "has left").await?;
        self.kill();
        match ended {
            Some(status) if !status.success() => {
                Err(format!("{} ended with {status}: {}", self.name, self.last_words()).into())
            }
            _ => Ok(()),
        }
    }

    fn orders(&self) -> PathBuf {
        self.folder.join("orders")
    }

    /// Sends an order to the program, and returns its answer.
    pub(crate) async fn order(&self, order: &str, patience: Duration) -> Result<String> {
        let ask = async {
            let mut stream = UnixStream::connect(self.orders()).await?;
            stream.write_all(format!("{order}\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer.trim().to_owned())
        };
        let answer = timeout(patience, ask).await??;
        match answer.strip_prefix("error: ") {
            Some(error) => Err(format!("{}, ordered to {order}: {error}", self.name).into()),
            None => Ok(answer),
        }
    }

    /// Waits until the process has ended, and returns how; `None` if there was no process.
    pub(crate) async fn ended(&self, patience: Duration, what: &str) -> Result<Option<ExitStatus>> {
        Ok(eventually(
            patience,
            format!("{} {what}", self.name),
            async || match &mut *self.process.borrow_mut() {
                Some(process) => process.exited().map(Some),
                None => Some(None),
            },
        )
        .await?)
    }

    /// Returns an error if the node ended without a request.
    pub(crate) fn check(&self) -> Result {
        let ended = match &mut *self.process.borrow_mut() {
            Some(process) => process.exited(),
            None => None,
        };
        match ended {
            Some(status) => Err(format!(
                "{} ended by itself ({status}): {}",
                self.name,
                self.last_words()
            )
            .into()),
            None => Ok(()),
        }
    }

    /// Returns the node's identity, which is also its etcd user, if there are users.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the library's log so far.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log.txt")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Returns an error if the node did not log that a request failed with an error of that class. With challenges, its lease
    /// may be lost before it is time to renew it.
    pub(crate) fn require_logged_cause(&self, class: &str) -> Result {
        let class = format!("class={class}");
        let log = self.log();
        let said = ["renewal failed", "request failed"];
        let mut lines = log.lines().filter(|line| line.contains(&class));
        if lines.any(|line| said.iter().any(|words| line.contains(words))) {
            return Ok(());
        }
        Err(format!("{} did not say why its requests failed", self.name).into())
    }

    /// Returns the end of the node's log.
    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}
