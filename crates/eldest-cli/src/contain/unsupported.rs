//! Ends a program by its process group on platforms without a subreaper and a keeper. Processes that left the group
//! survive.
#![allow(
    clippy::unnecessary_wraps,
    clippy::unused_async,
    clippy::unused_self,
    reason = "it has the shape of what there is on Linux"
)]
#![cfg_attr(test, allow(dead_code))] // tests use their own part

use std::io;
use std::sync::Arc;
use std::time::Duration;

use eldest::Session;
use eldest_process::clock;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use super::spec::{Commands, Ending, Exit, Gone, Limit, Spec, Stop};
use crate::variables::{FENCING_TOKEN, TERM_KEY};

/// The children of this process, which are not recorded on this platform.
pub(crate) struct ChildRegistry;

impl ChildRegistry {
    pub(crate) fn found() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self))
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        command.spawn()
    }

    pub(crate) fn reap(&self) {}
}

/// Stands in for the keeper: on this platform the supervisor alone ends the program.
pub(crate) struct Keeper(Arc<Spec>);

impl Keeper {
    pub(crate) async fn start(spec: &Arc<Spec>, _: &Arc<ChildRegistry>) -> io::Result<Self> {
        Ok(Self(Arc::clone(spec)))
    }

    pub(crate) async fn name_to(&mut self, _: &[&Session]) -> io::Result<()> {
        Err(io::Error::other("the program has no cgroup on this system"))
    }

    pub(crate) fn group(&self) -> Option<i32> {
        None
    }

    pub(crate) fn is_gone(&mut self) -> bool {
        false
    }

    /// Starts the program, and returns when it has ended.
    pub(crate) async fn go(
        self,
        leader: Option<(i64, String)>,
        limit: impl Fn() -> Limit + Send,
        mut commands: Commands,
    ) -> Ending {
        let spec = &*self.0;
        let mut command = Command::new(&spec.program[0]);
        command.args(&spec.program[1..]).process_group(0);
        for (name, value) in &spec.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some((token, key)) = leader {
            command.env(FENCING_TOKEN, token.to_string());
            command.env(TERM_KEY, key);
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return Ending::NotStarted(error),
        };
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let signal = |signal| {
            // Fails only if the group has no process left.
            group.map(|group| kill_process_group(group, signal).is_ok())
        };
        let (mut asked, mut abandoned) = (false, false);
        let status = loop {
            let stop = match *commands.stop.borrow_and_update() {
                stop if abandoned => stop.at_once(Duration::ZERO),
                stop => stop,
            };
            let now = clock::now();
            let until = now.saturating_add(clock::nanos(limit().left));
            let limits = spec.limits(until, stop);
            if now >= limits.kill_at {
                asked = true;
                signal(Signal::KILL);
            } else if now >= limits.term_at && !asked {
                asked = true;
                signal(Signal::TERM);
            }
            let pause = Duration::from_nanos(limits.kill_at.saturating_sub(now));
            tokio::select! {
                biased;
                status = child.wait() => break status,
                () = sleep(pause.clamp(Duration::from_millis(1), spec.tick)) => {}
                changed = commands.stop.changed(), if !abandoned => abandoned = changed.is_err(),
                Ok(passed) = commands.signals.recv() => drop(Signal::from_named_raw(passed.signal).map(signal)),
            }
        };
        // Kills the rest of its group; a group id is not reused while the group has a process.
        signal(Signal::KILL);
        match status {
            Ok(status) => Ending::Gone(Gone::now(exit(status), !asked)),
            Err(error) => Ending::NotStarted(error),
        }
    }
}

fn exit(status: std::process::ExitStatus) -> Exit {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.signal().map(Exit::Signal);
    signal.unwrap_or(Exit::Code(status.code().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use tokio::sync::{broadcast, watch};

    use super::*;

    /// Returns the ending of a script that has `left` once it has made the file `$0`.
    async fn ending(script: &str, left: Duration) -> Ending {
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready");
        let spec = Spec {
            program: ["/bin/sh", "-c", script, &ready.display().to_string()]
                .map(Into::into)
                .to_vec(),
            environment: Vec::new(),
            grace: Duration::from_millis(100),
            lead: Duration::from_millis(10),
            tick: Duration::from_millis(20),
            cgroup: false,
            after: None,
        };
        let child_registry = ChildRegistry::found().unwrap();
        let keeper = Keeper::start(&Arc::new(spec), &child_registry)
            .await
            .unwrap();
        let (_stop, stopped) = watch::channel(Stop::Not);
        let signals = broadcast::channel(1).0;
        let commands = Commands {
            stop: stopped,
            signals: signals.subscribe(),
        };
        let limit = || {
            if ready.exists() {
                Limit {
                    left,
                    ..Limit::PAST
                }
            } else {
                Limit::NEVER
            }
        };
        keeper.go(None, limit, commands).await
    }

    fn is(ending: &Ending, wanted: Exit, wanted_by_itself: bool) -> bool {
        matches!(ending, Ending::Gone(gone) if gone.exit == wanted && gone.by_itself == wanted_by_itself)
    }

    #[tokio::test]
    async fn program_that_ends_by_itself_reports_its_code() {
        let ending = ending("exit 3", Duration::ZERO).await;
        assert!(is(&ending, Exit::Code(3), true), "{ending:?}");
    }

    #[tokio::test]
    async fn program_whose_time_is_over_is_killed() {
        let script = "trap '' TERM; : > $0; while :; do sleep 0.01; done";
        let ending = ending(script, Duration::ZERO).await;
        assert!(is(&ending, Exit::Signal(9), false), "{ending:?}");
    }

    #[tokio::test]
    async fn program_whose_time_is_nearly_over_gets_sigterm_first() {
        let script = "trap 'exit 4' TERM; : > $0; while :; do sleep 0.01; done";
        let ending = ending(script, Duration::from_millis(105)).await;
        assert!(is(&ending, Exit::Code(4), false), "{ending:?}");
    }
}
