//! Runs a program under a term: starts it when no other node's program can run any more, and ends it before the term
//! ends.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use eldest::guard::Guard;
use eldest::internal::{self, Pause};
use eldest::{
    CancellationToken, Challenges, LostReason, Partitions, Session, SessionOptions, Term, operator,
};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::after;
use crate::challenges::Pace;
use crate::connection::Connection;
use crate::contain::{
    self, ChildRegistry, Commands, Ending, Exit, Keeper, LEASE_EXPIRING, Limit, STOPPED, Spec, Stop,
};
use crate::executable::find;
use crate::exit::{self, Code, fault};
use crate::guard;
use crate::log;
use crate::member;
use crate::pairing::{self, Programs};
use crate::resource::{Held, Resource, Sharing, lock_of_partition};
use crate::serving::NOTIFY_SOCKET;
use crate::signals::Signals;
use crate::variables;

const HEADING: &str = "Program";

/// The level of the namespace for the keys that keep programs apart, whatever happens to the keys of the election
/// itself.
const GUARDS: &str = "~run";
const BETWEEN_CONFIRMATIONS: Duration = Duration::from_millis(50);

/// The options of the program, and how it is ended.
#[derive(Debug, clap::Args)]
#[group(id = "supervised")]
pub(crate) struct Args {
    #[command(flatten)]
    member: member::Args,

    #[command(flatten)]
    guard: guard::Args,

    /// How long the program has between SIGTERM and SIGKILL after a loss [default: TTL/5, at most 10 s; with --challenges, a
    /// twentieth of that time; with --after, half of it]
    #[arg(
        long, value_name = "DURATION", value_parser = crate::connection::duration, env = "ELDEST_GRACE",
        hide_env_values = true, help_heading = HEADING
    )]
    grace: Option<Duration>,

    /// How long the program has when this command is stopped by SIGTERM or SIGINT; the place is kept meanwhile [default: --grace]
    #[arg(
        long, value_name = "DURATION", value_parser = crate::connection::duration, env = "ELDEST_STOP_TIMEOUT",
        hide_env_values = true, help_heading = HEADING
    )]
    stop_timeout: Option<Duration>,

    #[command(flatten)]
    after: after::Args,

    /// Do not put the program into its own cgroup
    #[arg(long, help_heading = HEADING)]
    no_cgroup: bool,

    /// The program, with its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    program: Vec<OsString>,
}

/// The end of the program under one term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The program ended, by itself or because this command stops, after it `ran` for that long.
    Ended { exit: Exit, ran: Duration },
    /// The program was ended, or never started, because the term was lost.
    Lost,
    /// The program was never started, because this command stops.
    Stopped,
}

/// Runs one program repeatedly, never twice at the same time.
pub(crate) struct Supervisor {
    pub(crate) signals: Signals,
    pub(crate) child_registry: Arc<ChildRegistry>,
    spec: Arc<Spec>,
    stop_timeout: Duration,
    /// A keeper that waits for the next term, so that the program starts without delay.
    standby: Mutex<Option<Keeper>>,
    guards: Session,
    /// The session of the election or lock, if the guard of both sessions must know each keeper and its program.
    guarded: Option<Session>,
    /// The lock, or as many permits as there may be programs. No program begins without it.
    guard: Resource,
    /// True if both sessions allow challenges.
    is_challenged: bool,
}

impl Supervisor {
    /// Opens a supervisor, and the session for the election or lock. `sharing` is the number of nodes that run their
    /// programs at a time; `capacity` is announced to other members of partitions; `variable` is one more for the program.
    pub(crate) async fn open(
        connection: &Connection,
        args: &Args,
        name: &str,
        sharing: Sharing,
        capacity: Option<u32>,
        variable: Option<(&'static str, OsString)>,
    ) -> Result<(Session, Arc<Self>)> {
        let found = find(&args.program[0])?;
        let endpoints = connection.node_endpoints()?;
        let id = args.member.id();
        let allowed = [
            connection.allowed.of_node()?,
            connection.allowed.of_second()?,
        ];
        let Pace {
            grace,
            lead,
            tick,
            after: limit,
        } = args.pace(connection, allowed[0].as_ref())?;
        let signals = Signals::listen()?;
        let child_registry =
            ChildRegistry::found().context("this process cannot find its child processes")?;
        let after = args.after.checked(limit, &child_registry).await?;
        let spec = Arc::new(Spec {
            program: args.program_at(found),
            environment: environment(name, &id, connection, variable),
            grace,
            lead,
            tick,
            cgroup: !args.no_cgroup,
            after,
        });
        let mut standby = Keeper::start(&spec, &child_registry).await?;
        let guard = args.guard(&mut standby).await?;
        let [first, second] = allowed;
        let is_challenged = second.is_some();
        let options = connection.session_options(&id)?.grace(grace + lead + limit);
        let announcement = args.member.announcement(connection);
        let announcement = match capacity {
            Some(capacity) => announcement.with_capacity(capacity),
            None => announcement,
        };
        let own = with(options.clone(), guard.as_ref(), first).announcement(announcement);
        let session = Session::connect(&endpoints, own).await?;
        let guards =
            with(options, guard.as_ref(), second).namespace(of_guards(session.namespace()));
        let guards = Session::connect(&endpoints, guards);
        let guards = guards.instrument(log::detail()).await?;
        warm_up(&guards).await?;
        if guard.is_some() {
            standby.name_to(&[&session, &guards]).await?;
        }
        let supervisor = Self {
            signals,
            child_registry,
            stop_timeout: args.stop_timeout.unwrap_or(grace),
            spec,
            standby: Mutex::new(Some(standby)),
            guard: Resource::new(&guards, name, sharing)?,
            guarded: guard.map(|_| session.clone()),
            guards,
            is_challenged,
        };
        Ok((session, Arc::new(supervisor)))
    }

    /// Challenges both sessions of a silent node at once, if both allow challenges, until this node's sessions are closed.
    pub(crate) fn challenge_both(&self, session: &Session, programs: Programs) {
        if self.is_challenged {
            let (session, guards) = (session.clone(), self.guards.clone());
            tokio::spawn(pairing::challenge_both(session, guards, programs));
        }
    }

    /// Returns the same containment for another program, without a term.
    pub(crate) fn spec_for(&self, program: Vec<OsString>) -> Arc<Spec> {
        let mut spec = Spec::clone(&self.spec);
        // Nobody reads what this program says.
        spec.environment.retain(|(name, _)| *name != NOTIFY_SOCKET);
        Arc::new(Spec {
            program,
            after: None,
            ..spec
        })
    }

    /// Returns a supervisor for the program of one partition, beside which no other program of that partition runs.
    pub(crate) fn for_partition(&self, partitions: &Partitions, number: u32) -> Result<Self> {
        let count = partitions.count();
        let name = lock_of_partition(partitions, number);
        let mut spec = Spec::clone(&self.spec);
        spec.environment.extend([
            (variables::PARTITION, Some(number.to_string().into())),
            (variables::PARTITION_COUNT, Some(count.to_string().into())),
        ]);
        Ok(Self {
            signals: self.signals.clone(),
            child_registry: Arc::clone(&self.child_registry),
            spec: Arc::new(spec),
            stop_timeout: self.stop_timeout,
            standby: Mutex::default(),
            guard: Resource::new(&self.guards, &name, Sharing::Alone)?,
            guarded: self.guarded.clone(),
            guards: self.guards.clone(),
            is_challenged: self.is_challenged,
        })
    }

    /// Ends the keeper that waits for the next term.
    pub(crate) async fn dismiss(&self) {
        self.standby.lock().await.take();
    }

    /// Starts a keeper for the next term, in the background: a caller that needs one earlier starts its own.
    pub(crate) fn prepare(self: &Arc<Self>) {
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let mut standby = this.standby.lock().await;
            if standby.as_mut().is_none_or(Keeper::is_gone) {
                *standby = this.start_keeper().await.ok();
            }
        });
    }

    /// Returns the commands for one program: the order to stop it, and the signals that are passed on to it.
    pub(crate) fn commands(&self) -> (watch::Sender<Stop>, Commands) {
        let (stop, stopped) = watch::channel(Stop::Not);
        let commands = Commands {
            stop: stopped,
            signals: self.signals.passed_on(),
        };
        (stop, commands)
    }

    /// Runs the program for as long as the term lasts, and returns when nothing of it is left.
    pub(crate) async fn run(&self, term: &Term) -> Result<Outcome> {
        self.run_beside(term, async |_| std::future::pending().await)
            .await
    }

    /// Runs the program as [`Supervisor::run`] does, and `beside` it, which receives the program's process group.
    pub(crate) async fn run_beside(
        &self,
        term: &Term,
        beside: impl AsyncFn(Option<i32>) -> Infallible,
    ) -> Result<Outcome> {
        let lost = term.lost();
        let guard = tokio::select! {
            biased;
            () = self.signals.stop.cancelled() => return Ok(Outcome::Stopped),
            () = lost.cancelled() => return Ok(Outcome::Lost),
            guard = self.guard() => guard?,
        };
        let guarded = guard.term();
        let lost = [lost, guarded.lost()];
        let mut held = Some(guard);
        let mut patient = true;
        while let Some(guard) = held.take() {
            let keeper = self.keeper().await?;
            let key = String::from_utf8_lossy(term.key()).into_owned();
            let leader = (term.fencing_token(), key);
            let (stop, commands) = self.commands();
            let terms = [term.clone(), guarded.clone()];
            let begun = contain::now();
            let beside = beside(keeper.group());
            // A task of its own runs until no process of the program is left, even if this future is dropped.
            let job = tokio::spawn(async move {
                let ending = keeper
                    .go(Some(leader), move || limit(&terms), commands)
                    .await;
                (ending, guard)
            });
            let reason = || reason([term, &guarded]).unwrap_or(LEASE_EXPIRING);
            let (ending, guard) = along(beside, self.attend(job, &stop, &lost, reason)).await?;
            let over = lost.iter().any(CancellationToken::is_cancelled);
            match ending {
                Ending::Gone(gone) if gone.by_itself || self.signals.stop.is_cancelled() => {
                    let (exit, ran) = (gone.exit, gone.at.saturating_sub(begun));
                    return Ok(Outcome::Ended { exit, ran });
                }
                Ending::NotStarted(_) | Ending::TooLate if self.signals.stop.is_cancelled() => {
                    return Ok(Outcome::Stopped);
                }
                Ending::Gone(_) | Ending::TooLate => return Ok(Outcome::Lost),
                Ending::NotStarted(_) if over => return Ok(Outcome::Lost),
                Ending::NotStarted(error) if patient => {
                    tracing::warn!(%error, "the program did not start; trying once more");
                    patient = false;
                    held = Some(guard);
                }
                Ending::NotStarted(error) => {
                    return Err(error).context("the program did not start");
                }
                Ending::Left(pids) => {
                    let message = format!(
                        "processes {pids:?} could not be killed; the next program may run beside them"
                    );
                    tracing::error!(message);
                    return Err(fault(Code::NotContained, message));
                }
            }
        }
        Ok(Outcome::Lost)
    }

    /// Acquires the lock that keeps other programs from running. A lock of another name was acquired at the start, so a
    /// refusal now is temporary, and every other node would meet it too.
    async fn guard(&self) -> Result<Held> {
        let mut pause = Pause::default();
        loop {
            let begun = contain::now();
            let acquired = tokio::select! {
                biased;
                acquired = self.guard.acquire() => acquired,
                never = self.suspect_holder() => never,
            };
            let error = match acquired {
                Err(error) if exit::may_pass(&error) => error,
                acquired => return Ok(acquired?),
            };
            let pause = pause.after(contain::now().saturating_sub(begun));
            tracing::warn!(%error, ?pause, "the lock of the program is refused; trying again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Suspects the session that holds the lock although this node leads: if it fell silent together with the session of
    /// its election, it is challenged at once; if it lives, it answers. Never completes.
    async fn suspect_holder<T>(&self) -> T {
        if self.is_challenged
            && let Ok(roster) = self.guard.roster().await
            && let Some(holder) = roster.leader()
        {
            // A session that is closed acquires nothing either.
            let _ = internal::suspect(&self.guards, holder.lease_id(), true);
        }
        std::future::pending().await
    }

    /// Waits for the program's end, and sets the time by which it must end.
    async fn attend<T>(
        &self,
        mut job: JoinHandle<T>,
        stop: &watch::Sender<Stop>,
        [term, guard]: &[CancellationToken; 2],
        reason: impl Fn() -> &'static str,
    ) -> Result<T> {
        let Signals {
            stop: asked, hurry, ..
        } = &self.signals;
        let mut by: Option<Duration> = None;
        // Each event makes the program's end more urgent, never less.
        let mut end = |within, why| {
            let at = contain::now() + within;
            let at = by.map_or(at, |by| by.min(at));
            by = Some(at);
            stop.send_replace(Stop::By { at, why });
        };
        let (mut lost, mut stopping, mut hurried) = (false, false, false);
        loop {
            tokio::select! {
                biased;
                ended = &mut job => return Ok(ended?),
                () = hurry.cancelled(), if !hurried => {
                    hurried = true;
                    end(Duration::ZERO, STOPPED);
                }
                () = either(term, guard), if !lost => {
                    lost = true;
                    end(self.spec.grace, reason());
                }
                () = asked.cancelled(), if !stopping => {
                    stopping = true;
                    end(self.stop_timeout, STOPPED);
                }
            }
        }
    }

    /// Returns the waiting keeper, or starts a new one.
    async fn keeper(&self) -> Result<Keeper> {
        if let Some(mut keeper) = self.standby.lock().await.take()
            && !keeper.is_gone()
        {
            return Ok(keeper);
        }
        Ok(self.start_keeper().await?)
    }

    /// Starts a keeper that the guards of the sessions know before its program can begin.
    async fn start_keeper(&self) -> std::io::Result<Keeper> {
        let mut keeper = Keeper::start(&self.spec, &self.child_registry).await?;
        if let Some(session) = &self.guarded {
            keeper.name_to(&[session, &self.guards]).await?;
        }
        Ok(keeper)
    }

    /// Releases the keys that are left in etcd.
    pub(crate) async fn close(&self, session: &Session) {
        let (first, second) = tokio::join!(session.close(), self.guards.close());
        if let Err(error) = first.and(second) {
            tracing::warn!(error = %error.report(), "etcd did not confirm the end of the session; its keys expire with the lease");
        }
    }
}

impl Args {
    /// Returns how the program is ended, and refuses times that do not fit together before anything begins.
    fn pace(&self, connection: &Connection, challenges: Option<&Challenges>) -> Result<Pace> {
        let options = connection.session_options("eldest")?;
        let (options, usual) = match challenges.cloned() {
            None => (options, Pace::of(connection.ttl(), None)),
            Some(challenges) => {
                let options = options.challenges(challenges);
                let times = operator::times(&options)?;
                (options, Pace::of(times.ttl, times.answer_within))
            }
        };
        let pace = self.after.share(usual, self.grace);
        let Pace {
            grace, lead, after, ..
        } = pace;
        operator::times(&options.grace(grace + lead + after)).with_context(|| {
            format!(
                "the grace period is --grace {grace:?}, --after-limit {after:?} and {lead:?} to kill the program"
            )
        })?;
        Ok(pace)
    }

    /// Returns the program with its arguments, with the file that was found for it.
    fn program_at(&self, found: PathBuf) -> Vec<OsString> {
        let mut program = self.program.clone();
        program[0] = found.into();
        program
    }

    /// Returns the guard of the sessions. Without a cgroup the end of all processes of a program could not be observed,
    /// so there is no guard.
    async fn guard(&self, standby: &mut Keeper) -> Result<Option<Guard>> {
        let Some(guard) = self.guard.guard() else {
            return Ok(None);
        };
        let Err(error) = standby.name_to(&[]).await else {
            return Ok(Some(guard));
        };
        if let Some(path) = self.guard.required() {
            let message = format!(
                "--guard {path} needs a cgroup for the program, and there is none ({error}); use --guard off or auto"
            );
            return Err(fault(Code::Usage, message));
        }
        tracing::warn!(
            %error, "not guarded: if this command is killed, its place stays taken until the lease expires"
        );
        Ok(None)
    }
}

/// Returns the options of a session that has this guard and allows these challenges.
fn with(
    options: SessionOptions,
    guard: Option<&Guard>,
    challenges: Option<Challenges>,
) -> SessionOptions {
    let options = match guard {
        Some(guard) => options.guard(guard.clone()),
        None => options,
    };
    match challenges {
        Some(challenges) => options.challenges(challenges),
        None => options,
    }
}

/// Returns the namespace of the locks that keep programs apart, below that of the elections.
fn of_guards(namespace: &str) -> String {
    match namespace {
        "" => GUARDS.to_owned(),
        "/" => format!("/{GUARDS}"),
        namespace => format!("{namespace}/{GUARDS}"),
    }
}

/// Returns the variables to set and to remove, including those of a supervisor that we run under.
fn environment(
    name: &str,
    id: &str,
    connection: &Connection,
    variable: Option<(&'static str, OsString)>,
) -> Vec<(&'static str, Option<OsString>)> {
    let endpoints: Vec<String> = connection
        .endpoints
        .iter()
        .map(ToString::to_string)
        .collect();
    let without = [
        variables::FENCING_TOKEN,
        variables::TERM_KEY,
        variables::PARTITION,
        variables::PARTITION_COUNT,
    ];
    let without = variables::hidden().chain(without);
    let without = without.map(|name| (name, None));
    let set = [
        (variables::ELECTION, Some(name.into())),
        (variables::ID, Some(id.into())),
        (variables::ENDPOINTS, Some(endpoints.join(",").into())),
        (
            variables::DATA_CENTER,
            connection.data_center.as_ref().map(Into::into),
        ),
    ];
    let more = variable.map(|(name, value)| (name, Some(value)));
    without.chain(set).chain(more).collect()
}

/// Gives the session its lease, which it gets with its first key. It should have one before it leads, because the
/// program's start would otherwise wait for it. The key has a name of its own and lives for a moment. A failure that a
/// later try would not meet ends nothing: the session deletes the key in the background, and gets a lease when it needs one.
pub(crate) async fn warm_up(guards: &Session) -> Result<()> {
    let own = format!("{:016x}", fastrand::u64(..));
    match guards.lock(own)?.acquire().await {
        Err(error) if !error.is_transient() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Waits until etcd confirms that the term outlives the lock of its program, which was lost, and logs that. Returns false if
/// the term ends: in an outage of etcd both are lost, one soon after the other, and the session logs the end of the term.
pub(crate) async fn outlives_lock(term: &Term) -> bool {
    let lost = term.lost();
    loop {
        let confirmed = tokio::select! {
            biased;
            () = lost.cancelled() => return false,
            confirmed = term.txn([]) => confirmed,
        };
        if confirmed.is_ok() {
            tracing::warn!(
                election = term.name(),
                "the lock of the program was lost: the program was ended"
            );
            return true;
        }
        tokio::time::sleep(BETWEEN_CONFIRMATIONS).await;
    }
}

/// Returns what `main` returns, and polls `beside` until then.
async fn along<T>(beside: impl Future<Output = Infallible>, main: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = main => done,
        never = beside => match never {},
    }
}

/// Returns the reason for which one of the two terms was lost, or `None` if neither was.
fn reason(terms: [&Term; 2]) -> Option<&'static str> {
    let mut reasons = terms.into_iter().filter_map(Term::lost_reason);
    reasons.next().map(LostReason::as_str)
}

async fn either(one: &CancellationToken, other: &CancellationToken) {
    tokio::select! {
        () = one.cancelled() => {}
        () = other.cancelled() => {}
    }
}

/// Returns until when the program may live: while one of the two terms is ours, no other program can begin. A term sets
/// its reason before it freezes its limit, so the reason of a frozen limit is known here.
fn limit(terms: &[Term; 2]) -> Limit {
    let valid = terms.iter().filter(|term| term.is_valid());
    let until = valid.map(|term| {
        let until = term.valid_until();
        Limit {
            since_boot: until.since_boot(),
            left: until.time_left(),
            why: None,
        }
    });
    let first = until.min_by_key(|limit| limit.since_boot);
    Limit {
        why: reason(terms.each_ref()),
        ..first.unwrap_or(Limit::PAST)
    }
}

#[cfg(test)]
mod tests {
    use eldest::{BoxError, StepDown};
    use eldest_testing::MemoryEtcd;

    use super::*;

    /// The task that orders the program's end may be late; the one that shares the limit is not, and must know as much.
    #[tokio::test(start_paused = true)]
    async fn limit_of_a_term_that_was_ordered_to_end_names_the_order() -> Result<(), BoxError> {
        let etcd = MemoryEtcd::start();
        let session = etcd.session(SessionOptions::new("a")).await?;
        let guards = etcd.session(SessionOptions::new("a")).await?;
        let other = etcd.session(SessionOptions::new("b")).await?;
        let election = session.election("e")?;
        let leadership = election.campaign().await?.elected().await?;
        let _waiting = other.election("e")?.campaign().await?;
        let held = guards.lock("l")?.acquire().await?;
        let terms = [leadership.term(), held.term()];
        let before = limit(&terms);
        assert_eq!(before.why, None);
        let order = StepDown::new().node("a");
        let ordered = tokio::spawn(async move { election.order_step_down(order).await });
        terms[0].lost().cancelled().await;
        let frozen = limit(&terms);
        assert_eq!(frozen.why, Some("ordered"));
        assert!(frozen.since_boot <= before.since_boot, "{frozen:?}");
        assert!(frozen.left > Duration::ZERO, "{frozen:?}");
        drop(leadership);
        ordered.await??;
        Ok(())
    }
}
