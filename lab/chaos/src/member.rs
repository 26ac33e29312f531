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
use crate::wide::Wide;
use crate::wire::Wire;
use crate::{NODE, Result, Settings, users};

/// How often the fenced counter is raised.
const PACE: &str = "0.1";

/// A node, running or not.
pub(crate) struct Member {
    pub(crate) name: String,
    /// The file of its history.
    pub(crate) history: PathBuf,
    /// Everything of its own.
    folder: PathBuf,
    /// Everything of everybody's.
    whole: PathBuf,
    /// As whom it stands.
    identity: String,
    endpoints: String,
    /// Words before the program's name when it is started.
    through: Vec<OsString>,
    /// How far away the servers are, if it is to be set up for that.
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
    /// How many of its processes have ended.
    ended: Cell<usize>,
}

/// Settings that all nodes have in common.
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

    /// The node of that number in a data centre, one of those that the nodes are spread over. It uses the server there, if
    /// it has one near, and then those of the next ones.
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
        let round_trip = self.round_trip.map(|time| time.as_secs_f64().to_string());
        command
            .args(&words[1..])
            .env("ROUND_TRIP_SECONDS", round_trip.unwrap_or_default())
            .env(NODE, "1")
            .env("ETCD_ENDPOINTS", &self.endpoints)
            .env("NODE_NAME", &self.identity)
            .env("ELECTION", &self.election)
            .env("TTL_SECONDS", settings.ttl.as_secs_f64().to_string())
            .env("LISTEN", "127.0.0.1:0")
            .env("HISTORY", &self.history)
            .env("HISTORY_NAME", &self.name)
            .env("PACE_SECONDS", PACE)
            .env("REGISTER", &self.register)
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
        // Should we be killed, nobody is left who would miss what the others wrote.
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

    /// On return it is dead.
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

    /// On return it is stopped.
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

    /// Asks it to end, and waits until it has; an error if it did not end, or not well.
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

    /// Tells it to break its own, and what it answers.
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

    /// Waits until its process is over, and how; none if there was none.
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

    /// An error if it ended though nobody asked it to.
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

    /// As whom it stands, and as which user it asks etcd, if there are any.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the library's log so far.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log.txt")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Returns an error if the node did not log that a renewal failed with an error of that class.
    pub(crate) fn require_logged_cause(&self, class: &str) -> Result {
        let class = format!("class={class}");
        let log = self.log();
        let mut lines = log.lines().filter(|line| line.contains("renewal failed"));
        if lines.any(|line| line.contains(&class)) {
            return Ok(());
        }
        Err(format!("{} did not say why its renewals failed", self.name).into())
    }

    /// The end of its log.
    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}
