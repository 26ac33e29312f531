//! Runs a contained program from the supervisor's side: commands the keeper, and ends the program itself if the keeper
//! does not.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use eldest::Session;
use eldest_process::cgroup::MadeCgroup;
use eldest_process::clock::{self, NEVER};
use eldest_process::pidfd;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::{broadcast, watch};
use tokio::time::{sleep, timeout};

use super::after::{KILLED, LEASE_EXPIRING, PROGRAM_ENDED};
use super::board::Board;
use super::child_registry::{ChildRegistry, pid_of};
use super::keeper::Place;
use super::spec::{Commands, Ending, Exit, Gone, Limit, Limits, Spec, Stop, described};
use super::watched::Watched;
use super::wire::{Order, Report};
use super::{KEEPER, children};
use crate::contain;

/// How long a keeper may take to start, or to start the program.
const START: Duration = Duration::from_secs(10);
/// How long a keeper may sweep after the program has ended, before the supervisor sweeps instead.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the supervisor tries, at least, to kill the remaining processes.
const TRIES: Duration = Duration::from_secs(2);
/// The pause between two rounds of killing.
const PAUSE: Duration = Duration::from_millis(2);
/// How long the supervisor reads the reports of an overdue keeper.
const LAST_WORD: Duration = Duration::from_millis(10);
/// A keeper that waits for the order to start its program. Dropping the value ends the keeper.
pub(crate) struct Keeper {
    spec: Arc<Spec>,
    child_registry: Arc<ChildRegistry>,
    pid: Pid,
    child: Child,
    board: Board,
    orders: File,
    reports: Lines<BufReader<pipe::Receiver>>,
    /// Known before it starts: a keeper can be stopped before it reports the start. `None` if it has ended.
    program: Option<Program>,
}

impl Keeper {
    /// Starts a keeper and waits until it is ready.
    pub(crate) async fn start(
        spec: &Arc<Spec>,
        child_registry: &Arc<ChildRegistry>,
    ) -> io::Result<Self> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (orders_end, orders) = pipe_with(flags)?;
        let (reports, reports_end) = pipe_with(flags)?;
        let board = Board::create()?;
        board.write(Limits::none(clock::nanos(spec.grace)))?;
        let place = Place {
            supervisor: i32::try_from(std::process::id()).unwrap_or_default(),
            board: board.number(),
            orders: orders_end.as_raw_fd(),
            reports: reports_end.as_raw_fd(),
            cgroup: spec.cgroup,
            after: spec.after.clone(),
        };
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("eldest")
            .arg(KEEPER)
            .args(place.arguments())
            .args(&spec.program)
            .stdin(Stdio::inherit());
        for (name, value) in &spec.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = child_registry.spawn(&mut command)?;
        let mut keeper = Self {
            spec: Arc::clone(spec),
            child_registry: Arc::clone(child_registry),
            pid: pid_of(&child).ok_or(io::ErrorKind::NotFound)?,
            child,
            board,
            orders: File::from(orders),
            reports: BufReader::new(pipe::Receiver::from_owned_fd(reports)?).lines(),
            program: None,
        };
        let ready = timeout(START, keeper.hear(Some(reports_end))).await;
        drop(orders_end);
        if let Ok(Some(Report::Ready(pid))) = ready {
            keeper.program = Program::of(pid, keeper.pid);
            return Ok(keeper);
        }
        drop(keeper.clear(false, false, 0).await);
        Err(io::Error::other("the keeper of the program did not start"))
    }

    /// Returns the next report, or `None` if the keeper has died. Closes our own copy of the keeper's end afterwards.
    async fn hear(&mut self, end: Option<OwnedFd>) -> Option<Report> {
        let heard = tokio::select! {
            line = self.reports.next_line() => line.ok().flatten(),
            // While we hold the keeper's end too, the pipe does not close when the keeper dies.
            _ = self.child.wait(), if end.is_some() => None,
        };
        heard?.parse().ok()
    }

    /// Names the keeper, the process that is to become the program, and the program's cgroup to the guards of these
    /// sessions. The program must not start before.
    pub(crate) async fn name_to(&mut self, sessions: &[&Session]) -> io::Result<()> {
        let watched = timeout(START, self.watched()).await;
        let late = || io::Error::other("the program's process did not join its cgroup");
        let watched = watched.map_err(|_| late())??;
        for session in sessions {
            watched.name_to(session)?;
        }
        Ok(())
    }

    async fn watched(&mut self) -> io::Result<Watched> {
        loop {
            let watched = Watched::of(self.pid)?;
            // The kernel does not reuse the process id before we wait for the process.
            if self.is_gone() {
                return Err(io::Error::other("the keeper of the program has died"));
            }
            match watched {
                Some(watched) => return Ok(watched),
                None => sleep(PAUSE).await,
            }
        }
    }

    /// Returns the process group of the program, or `None` if it has ended.
    pub(crate) fn group(&self) -> Option<i32> {
        let program = self.program.as_ref();
        program.map(|program| program.pid.as_raw_nonzero().get())
    }

    /// Returns true if the keeper has died while it waited.
    pub(crate) fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Starts the program, and returns when none of its processes is left, or when the rest cannot be killed. If the
    /// program may have begun, the command that follows it has ended then too.
    ///
    /// `limit` returns the time until which processes of the program may live; it is called repeatedly.
    pub(crate) async fn go(
        self,
        leader: Option<(i64, String)>,
        limit: impl Fn() -> Limit + Send,
        commands: Commands,
    ) -> Ending {
        let spec = Arc::clone(&self.spec);
        let child_registry = Arc::clone(&self.child_registry);
        let (ending, due) = self.contain(leader.clone(), &limit, commands).await;
        if let (Some(why), Some(after), Some(leader)) = (due, &spec.after, leader) {
            let now = contain::now();
            let mut spec = Spec {
                program: after.program(),
                grace: Duration::ZERO,
                after: None,
                ..Spec::clone(&spec)
            };
            let variables = after.environment(why, clock::nanos(now), limit().nanos());
            let set = variables
                .into_iter()
                .map(|(name, value)| (name, Some(value)));
            spec.environment.extend(set);
            let killed_at = now.saturating_add(after.limit);
            follow_up(Arc::new(spec), &child_registry, leader, killed_at).await;
        }
        ending
    }

    /// Contains the program until its end. Returns the reason of the end too if this process ended the program, so that
    /// the keeper may not have run the command that follows it.
    async fn contain(
        mut self,
        leader: Option<(i64, String)>,
        limit: &(impl Fn() -> Limit + Send),
        commands: Commands,
    ) -> (Ending, Option<&'static str>) {
        let mut course = Course {
            begun: clock::now(),
            started: false,
            end: None,
            why: None,
            until: 0,
            gone: None,
            followed: false,
        };
        let go = Order::Go(leader);
        match self.watch(&mut course, go, limit, commands).await {
            Some(Report::Gone(exit, asked)) => {
                // The keeper only has to exit now.
                let mut child = self.child;
                tokio::spawn(async move { child.wait().await });
                let gone = course.gone.unwrap_or_else(|| Gone::now(exit, !asked));
                (Ending::Gone(gone), None)
            }
            Some(Report::Failed(errno)) => {
                drop(self.clear(false, false, course.until).await);
                let error = io::Error::from_raw_os_error(errno);
                (Ending::NotStarted(error), None)
            }
            Some(Report::TooLate) => {
                drop(self.clear(false, false, course.until).await);
                (Ending::TooLate, None)
            }
            _ => {
                let by_itself = course.ended_by_itself();
                let why = course.reason();
                let ending = match self.clear(course.started, by_itself, course.until).await {
                    Ending::Gone(killed) => Ending::Gone(course.gone.unwrap_or(killed)),
                    ending => ending,
                };
                let is_due = !course.followed && !matches!(ending, Ending::Left(_));
                (ending, is_due.then_some(why))
            }
        }
    }

    /// Orders the keeper to start the program, and returns its report of the end. Returns `None` if the keeper has died, or
    /// does not end the program or the command that follows it in time.
    async fn watch(
        &mut self,
        course: &mut Course,
        go: Order,
        limit: &(impl Fn() -> Limit + Send),
        mut commands: Commands,
    ) -> Option<Report> {
        let mut shared = Limits::none(0);
        let mut abandoned = None;
        let mut go = Some(go);
        loop {
            let now = clock::now();
            let limit = limit();
            course.until = limit.nanos();
            // The caller has dropped its end of the commands, so nobody waits for the program any more.
            let stop = *commands.stop.borrow_and_update();
            let stop = abandoned.map_or(stop, |at| stop.at_once(at));
            // The keeper must know why before a frozen limit can end the program.
            if let Some(why) = course.stopped_by(stop, limit) {
                self.send_order(&Order::Why(why.to_owned()));
            }
            let limits = self.spec.limits(course.until, stop);
            if let Err(error) = self.share(limits, &mut shared) {
                tracing::error!(%error, "the deadline cannot be shared");
                return None;
            }
            if let Some(go) = go.take() {
                self.send_order(&go);
            }
            course.end = course.end.or_else(|| self.noticed_end(now));
            let overdue = self.overdue(limits, course);
            let report = if now >= overdue {
                // The keeper may have reported the end while this process was stopped.
                timeout(LAST_WORD, self.reports.next_line()).await.ok()
            } else {
                // This pause's clock may stand still while the machine sleeps, so our own clock is read after each
                // pause.
                let pause = Duration::from_nanos(overdue - now).min(self.spec.tick);
                match self.listen(pause, &mut commands, &mut abandoned).await {
                    None => continue,
                    line => line,
                }
            };
            let Some(report) = report else {
                if course.gone.is_some() && !course.followed {
                    course.followed = true;
                    report_follow_up(None);
                } else {
                    tracing::warn!(keeper = %self.pid, "the keeper did not end the program in time");
                }
                return None;
            };
            match report.ok().flatten().and_then(|line| line.parse().ok()) {
                Some(Report::Started) => course.started = true,
                Some(Report::Following(exit, asked)) => course.gone = Some(Gone::now(exit, !asked)),
                Some(Report::Followed(ended)) => {
                    course.followed = true;
                    report_follow_up(ended);
                }
                Some(Report::Ready(_)) => {}
                Some(end) => return Some(end),
                None => {
                    tracing::warn!(keeper = %self.pid, "the keeper of the program has died");
                    course.why = course.why.or(Some(KILLED));
                    return None;
                }
            }
        }
    }

    /// Writes the limits to the shared memory, and orders the keeper to read them if a deadline has come nearer.
    fn share(&mut self, limits: Limits, shared: &mut Limits) -> io::Result<()> {
        if limits == *shared {
            return Ok(());
        }
        self.board.write(limits)?;
        if limits.term_at < shared.term_at || limits.kill_at < shared.kill_at {
            self.send_order(&Order::Look);
        }
        *shared = limits;
        Ok(())
    }

    /// Waits for the next report, and passes signals on. Returns `None` if the pause ends, a command changes or a
    /// signal comes first.
    async fn listen(
        &mut self,
        pause: Duration,
        commands: &mut Commands,
        abandoned: &mut Option<Duration>,
    ) -> Option<io::Result<Option<String>>> {
        tokio::select! {
            biased;
            line = self.reports.next_line() => return Some(line),
            () = sleep(pause) => {}
            changed = commands.stop.changed(), if abandoned.is_none() => {
                *abandoned = changed.is_err().then(contain::now);
            }
            Ok(passed) = commands.signals.recv() => self.send_order(&Order::Signal(passed.signal)),
        }
        None
    }

    /// Returns the end of the program, if it has ended.
    fn noticed_end(&mut self, now: u64) -> Option<End> {
        let ended = self.program.as_ref().is_some_and(Program::has_ended);
        ended.then(|| End {
            noticed_at: now,
            // The kernel kills the program after the keeper, and shows the end of the keeper first.
            by_itself: !self.is_gone(),
        })
    }

    /// Returns the time from which on the supervisor no longer waits for the keeper.
    fn overdue(&self, limits: Limits, course: &Course) -> u64 {
        let patience = clock::nanos(PATIENCE);
        if let Some(gone) = course.gone {
            let after = self.spec.after.as_ref();
            let limit = after.map_or(Duration::ZERO, |after| after.limit);
            return clock::nanos(gone.at.saturating_add(limit)).saturating_add(patience);
        }
        let killed = limits
            .kill_at
            .saturating_add(clock::nanos(self.spec.lead / 2));
        let runs = if course.started {
            NEVER
        } else {
            course.begun.saturating_add(clock::nanos(START))
        };
        let swept = course
            .end
            .map_or(NEVER, |end| end.noticed_at.saturating_add(patience));
        killed.min(swept).min(runs)
    }

    fn send_order(&mut self, order: &Order) {
        // If the keeper's pipe is full, one signal is lost. The death of a keeper is noticed elsewhere.
        let _ = self.orders.write_all(order.to_string().as_bytes());
    }

    /// Ends everything without the keeper: the program's group, the keeper, and then the orphans that this process
    /// inherits. The program has begun if it was reported as `started`, or ended `by_itself`.
    async fn clear(mut self, started: bool, by_itself: bool, until: u64) -> Ending {
        let give_up = until.max(clock::now().saturating_add(clock::nanos(TRIES)));
        let mut exit = None;
        let program = self.program.take();
        if let Some(program) = &program {
            program.kill();
        }
        let cgroup = MadeCgroup::made_by(self.pid.as_raw_nonzero().get().unsigned_abs());
        let _ = self.child.start_kill();
        drop(timeout(START, self.child.wait()).await);
        loop {
            if let Some(cgroup) = &cgroup {
                cgroup.kill();
            }
            if let Some(program) = &program {
                exit = exit.or_else(|| children::ended(program.pid));
            }
            match self.child_registry.sweep() {
                Ok(left) if left.is_empty() => break,
                Ok(left) if clock::now() >= give_up => {
                    let number = |pid: &Pid| pid.as_raw_nonzero().get();
                    return Ending::Left(left.iter().map(number).collect());
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "the children of this process cannot be listed");
                    if clock::now() >= give_up {
                        return Ending::Left(Vec::new());
                    }
                }
            }
            sleep(PAUSE).await;
        }
        if let Some(cgroup) = cgroup {
            cgroup.remove();
        }
        if !started && !by_itself {
            return Ending::NotStarted(io::Error::other("its keeper died or hung"));
        }
        let exit = exit.unwrap_or(Exit::Signal(Signal::KILL.as_raw()));
        Ending::Gone(Gone::now(exit, by_itself))
    }
}

/// The end of a program, as the supervisor noticed it before the keeper reported it.
#[derive(Clone, Copy)]
struct End {
    noticed_at: u64,
    /// False if the program may have been killed because its keeper died.
    by_itself: bool,
}

/// The course of one program, as the supervisor sees it.
struct Course {
    begun: u64,
    started: bool,
    end: Option<End>,
    /// The reason of the first order to stop, unless the program had ended before.
    why: Option<&'static str>,
    /// The time until which processes of the program may live, as it was last.
    until: u64,
    /// The end of the program that the keeper reported when the command that follows it began.
    gone: Option<Gone>,
    followed: bool,
}

impl Course {
    fn ended_by_itself(&self) -> bool {
        let noticed = || self.end.is_some_and(|end| end.by_itself);
        self.gone.map_or_else(noticed, |gone| gone.by_itself)
    }

    /// Returns the reason of the end of a program whose keeper has died or hangs.
    fn reason(&self) -> &'static str {
        match (self.gone, self.why) {
            (Some(gone), _) if gone.by_itself => PROGRAM_ENDED,
            (_, Some(why)) => why,
            _ if self.ended_by_itself() => PROGRAM_ENDED,
            _ => LEASE_EXPIRING,
        }
    }

    /// Records the reason of the first order to stop, or of a limit that is known to be the last one before there is an
    /// order, and returns it.
    fn stopped_by(&mut self, stop: Stop, limit: Limit) -> Option<&'static str> {
        let why = match stop {
            Stop::By { why, .. } => Some(why),
            Stop::Not => limit.why,
        };
        if self.why.is_some() || self.end.is_some() {
            return None;
        }
        self.why = why;
        why
    }
}

/// Runs the command that follows a program until that time at most, in place of the keeper that should have run it.
async fn follow_up(
    spec: Arc<Spec>,
    child_registry: &Arc<ChildRegistry>,
    leader: (i64, String),
    killed_at: Duration,
) {
    let keeper = match Keeper::start(&spec, child_registry).await {
        Ok(keeper) => keeper,
        Err(error) => return tracing::warn!(%error, "the command of --after did not start"),
    };
    let limit = Limit {
        since_boot: killed_at + spec.lead,
        left: killed_at.saturating_sub(contain::now()) + spec.lead,
        why: None,
    };
    let (_stop, stop) = watch::channel(Stop::Not);
    let signals = broadcast::channel(1).1;
    let commands = Commands { stop, signals };
    match keeper.contain(Some(leader), &|| limit, commands).await.0 {
        Ending::Gone(gone) => report_follow_up(gone.by_itself.then_some(gone.exit)),
        Ending::NotStarted(error) => tracing::warn!(%error, "the command of --after did not start"),
        Ending::TooLate => report_follow_up(None),
        Ending::Left(pids) => {
            tracing::error!(
                ?pids,
                "processes of the command of --after could not be killed"
            );
        }
    }
}

fn report_follow_up(ended: Option<Exit>) {
    if ended == Some(Exit::Code(0)) {
        tracing::debug!("the command of --after has ended");
    } else {
        let how = described(ended);
        tracing::warn!(ended = how, "the command of --after failed");
    }
}

/// The program, as the supervisor knows it.
struct Program {
    pid: Pid,
    end: OwnedFd,
}

impl Program {
    /// Returns `None` if the program has ended meanwhile.
    fn of(pid: i32, keeper: Pid) -> Option<Self> {
        let end = pidfd::open(pid).ok()?;
        let pid = Pid::from_raw(pid)?;
        // If its parent waited for it before we opened it, another process may have its id.
        let parent = children::parent(pid)?;
        let own = parent == keeper.as_raw_nonzero().to_string();
        own.then_some(Self { pid, end })
    }

    fn has_ended(&self) -> bool {
        pidfd::has_ended(&self.end)
    }

    fn kill(&self) {
        // Fails if the program was waited for; until then no other process has its id.
        if pidfd::kill(&self.end).is_ok() {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contain::STOPPED;

    #[test]
    fn keeper_learns_the_reason_of_a_frozen_limit_before_there_is_an_order() {
        let course = |end| Course {
            begun: 0,
            started: true,
            end,
            why: None,
            until: 0,
            gone: None,
            followed: false,
        };
        let frozen = Limit {
            why: Some("ordered"),
            ..Limit::NEVER
        };
        let stop = Stop::By {
            at: Duration::ZERO,
            why: STOPPED,
        };
        let mut running = course(None);
        assert_eq!(running.stopped_by(Stop::Not, Limit::NEVER), None);
        assert_eq!(running.stopped_by(Stop::Not, frozen), Some("ordered"));
        assert_eq!(running.stopped_by(stop, frozen), None, "the first stays");
        assert_eq!(running.reason(), "ordered");
        assert_eq!(course(None).stopped_by(stop, frozen), Some(STOPPED));
        let ended = End {
            noticed_at: 1,
            by_itself: true,
        };
        let mut ended = course(Some(ended));
        assert_eq!(ended.stopped_by(Stop::Not, frozen), None);
        assert_eq!(ended.reason(), PROGRAM_ENDED);
    }
}
