//! Keeps the leadership on behalf of a program beside the node. The program asks the node before each act.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use eldest::internal::{self, Inside, SharedEnv};
use eldest::{CancellationToken, Election, Error, Leadership, Result, RunHandle, Shutdown};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::health::Fitness;
use super::programs::Programs;

/// The fencing token of the term that is kept for callers; 0 if there is none. It distinguishes a node that merely
/// leads from one that may promise time to callers.
#[derive(Debug, Clone)]
pub(super) struct Kept(Arc<watch::Sender<i64>>);

impl Kept {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::channel(0).0))
    }

    /// Returns `true` if that term is the kept one.
    pub(super) fn is(&self, token: i64) -> bool {
        *self.0.borrow() == token
    }

    /// Returns a receiver of the changes.
    pub(super) fn watch(&self) -> watch::Receiver<i64> {
        self.0.subscribe()
    }

    /// Keeps the term from now on, until the returned value is dropped or [`Kept::end`] is called. `over` is cancelled before
    /// that call, so no term begins after it.
    pub(super) fn begin(&self, token: i64, over: &CancellationToken) -> Keeping {
        self.0
            .send_modify(|kept| *kept = if over.is_cancelled() { 0 } else { token });
        Keeping(self.clone(), token)
    }

    /// Ends the kept term: from now on, no caller is promised any time.
    fn end(&self) {
        self.0.send_replace(0);
    }
}

/// A kept term.
#[derive(Debug)]
pub(super) struct Keeping(Kept, i64);

impl Drop for Keeping {
    fn drop(&mut self) {
        let Self(Kept(kept), token) = self;
        kept.send_if_modified(|kept| std::mem::replace(kept, 0) == *token);
    }
}

/// The handle of a candidacy on behalf of others, from [`Node::lead_on_behalf`](super::Node::lead_on_behalf). Await the
/// handle for the end of the candidacy. Dropping it does not end the candidacy, which continues until its shutdown or
/// the end of the session.
///
/// # Errors
///
/// As [`Election::run`](eldest::Election::run).
///
/// # Cancellation safety
///
/// Cancel safe: if a wait is dropped, awaiting `&mut leading` again returns the result. After the handle has returned
/// its result, do not await it again.
#[must_use = "await it: its errors are reported nowhere else"]
pub struct Leading {
    run: RunHandle<()>,
    at_once: CancellationToken,
}

impl Leading {
    pub(super) fn begin<S, K>(
        election: &Election,
        shutdown: S,
        kept: Kept,
        programs: Programs,
        fitness: Arc<Fitness>,
    ) -> Self
    where
        S: Shutdown<K>,
        S::Signal: Send + 'static,
    {
        let (env, of, alive) = (
            Inside::from(election).env(),
            election.clone(),
            programs.clone(),
        );
        let candidate = move |shutdown: CancellationToken, at_once: CancellationToken| {
            let (of, kept, fitness) = (of.clone(), kept.clone(), Arc::clone(&fitness));
            let programs = programs.clone();
            async move { campaign(&of, &fitness, &shutdown, &kept, &at_once, &programs).await }
                .boxed()
        };
        Self::while_programs_live(env, shutdown, alive, candidate)
    }

    /// Calls `campaign` repeatedly until the shutdown, each time once a program may act. `campaign` receives the
    /// shutdown and the token of [`Leading::stop_at_once`]. It returns `true` if every program has ended, so that it is
    /// called again.
    pub(super) fn while_programs_live<S, K>(
        env: &SharedEnv,
        shutdown: S,
        programs: Programs,
        campaign: impl Fn(CancellationToken, CancellationToken) -> BoxFuture<'static, Result<bool>>
        + Send
        + 'static,
    ) -> Self
    where
        S: Shutdown<K>,
        S::Signal: Send + 'static,
    {
        let at_once = CancellationToken::new();
        let ended = at_once.clone();
        let run = internal::spawn(env, shutdown, async move |shutdown: CancellationToken| {
            while !shutdown.is_cancelled() {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => break,
                    () = programs.begin() => {}
                }
                if !campaign(shutdown.clone(), ended.clone()).await? {
                    break;
                }
            }
            Ok(None)
        });
        Self { run, at_once }
    }

    /// Stops leading, as its shutdown does: the node reports this at once, and leaves the election a grace period
    /// later.
    pub fn stop(&self) {
        self.run.stop();
    }

    /// Leaves the election at once. Callers that were promised time lose it: another node may lead while they act.
    pub fn stop_at_once(&self) {
        self.run.stop();
        self.at_once.cancel();
    }
}

impl Future for Leading {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.run.poll_unpin(cx).map_ok(drop)
    }
}

impl fmt::Debug for Leading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leading").finish_non_exhaustive()
    }
}

/// Campaigns in the election until `shutdown`, or until every program that bound itself has ended, and returns `true`
/// then.
async fn campaign(
    election: &Election,
    fitness: &Arc<Fitness>,
    shutdown: &CancellationToken,
    kept: &Kept,
    at_once: &CancellationToken,
    programs: &Programs,
) -> Result<bool> {
    let orphaned = at_once.child_token();
    let (keeps, ledger, over) = (kept.clone(), programs.clone(), orphaned.clone());
    let (at_once, fit) = (at_once.clone(), Arc::clone(fitness));
    let work = move |leadership: Leadership| {
        fit.begin(&leadership);
        let kept = keep(keeps.clone(), leadership, ledger.clone(), over.clone());
        at_once
            .clone()
            .run_until_cancelled_owned(kept)
            .map(|_| Ok::<_, Error>(()))
    };
    let mut runner = election.runner();
    if let Some(timeout) = fitness.stall_timeout() {
        runner = runner.stall_timeout(timeout);
    }
    let env = Inside::from(election).env();
    if let Some((every, limit)) = fitness.times() {
        let fitness = Arc::clone(fitness);
        runner = runner.health_check(every, limit, move || Arc::clone(&fitness).ask());
    }
    let run = internal::spawn(env, shutdown.clone(), |token| runner.run(token, work));
    until_orphaned(run, programs_end(programs, kept, &orphaned)).await
}

/// Awaits the end of the run, and stops the run when every program has ended. Returns `true` in that case.
pub(super) async fn until_orphaned(
    mut run: RunHandle<()>,
    orphaned: impl Future<Output = ()>,
) -> Result<bool> {
    tokio::select! {
        ended = &mut run => return ended.map(|_| false),
        () = orphaned => {}
    }
    run.stop();
    run.await.map(|_| true)
}

/// Completes when every bound program has ended. A program that binds itself later receives no promise, because the
/// term is about to be released.
async fn programs_end(programs: &Programs, kept: &Kept, orphaned: &CancellationToken) {
    let end = || {
        orphaned.cancel();
        kept.end();
    };
    programs.end(end).await;
}

/// Does the work of a node that leads on behalf of others: it keeps the term's key until no caller may act any longer.
async fn keep(kept: Kept, leadership: Leadership, programs: Programs, orphaned: CancellationToken) {
    let _keeping = kept.begin(leadership.fencing_token(), &orphaned);
    let session = Inside::from(&leadership);
    // This work only waits for the time at which it would be dropped.
    internal::interruptible(&leadership.term());
    programs
        .may_act_no_longer(session, &leadership.term(), &orphaned)
        .await;
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use eldest::internal::System;
    use eldest::internal::process::Process;
    use eldest::internal::scripted::ScriptedTerm;
    use eldest::{Session, SessionOptions};

    use super::super::programs::Promise;
    use super::*;

    const TOKEN: i64 = 7;

    /// A program that runs until the value is dropped.
    struct Program(std::process::Child, Arc<Process>, SharedEnv);

    impl Program {
        fn start() -> Self {
            let mut sleep = std::process::Command::new("sleep");
            let child = sleep.arg("600").spawn().unwrap();
            let process = Arc::new(Process::open(child.id()).unwrap());
            Self(child, process, Arc::new(System::new().unwrap()))
        }

        fn bind(&self, programs: &Programs) {
            assert!(programs.bind(&self.2, &self.1, true));
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[tokio::test]
    async fn nothing_is_promised_once_the_last_program_is_known_to_be_dead() {
        let (programs, kept) = (Programs::new(), Kept::new());
        let orphaned = CancellationToken::new();
        let keeping = kept.begin(TOKEN, &orphaned);
        let program = Program::start();
        program.bind(&programs);
        let mut ended = Box::pin(programs_end(&programs, &kept, &orphaned));
        assert_eq!(ended.as_mut().now_or_never(), None);
        assert!(kept.is(TOKEN));
        drop(program);
        ended.await;
        // The work of the term may not have noticed it yet.
        assert!(orphaned.is_cancelled());
        assert!(!kept.is(TOKEN), "the next program would be promised time");
        let late = kept.begin(TOKEN, &orphaned);
        assert!(!kept.is(TOKEN), "a term began when all was over");
        drop((keeping, late));
    }

    #[tokio::test]
    async fn term_is_kept_until_the_last_promise_to_an_unbound_caller_ends() {
        const GRACE: Duration = Duration::from_millis(300);
        let options = SessionOptions::new("node-a").grace(GRACE);
        let session = Session::connect_lazy(["http://127.0.0.1:1"], options).unwrap();
        let election = session.election("e").unwrap();
        let (programs, orphaned) = (Programs::new(), CancellationToken::new());
        let inside = Inside::from(&session);
        let env = inside.env();
        let (asked, deadline) = (env.now(), env.now().after(Duration::from_secs(600)));
        let scripted = ScriptedTerm::new(&session, Arc::clone(env), "e", deadline, TOKEN);
        scripted.elect(&election);
        let term = election.term().unwrap();
        assert_eq!(programs.promise(inside, None), Promise::Given);
        let program = Program::start();
        program.bind(&programs);
        assert_eq!(programs.promise(inside, None), Promise::ForOthers);
        assert_eq!(programs.promise(inside, Some(&program.1)), Promise::Given);
        drop(program);
        programs.end(|| orphaned.cancel()).await;
        assert_eq!(programs.promise(inside, None), Promise::ForOthers);
        scripted.lease_lost();
        programs.may_act_no_longer(inside, &term, &orphaned).await;
        assert!(env.now() >= asked.after(GRACE), "a promise was cut");
    }

    #[tokio::test]
    async fn program_binding_itself_at_the_end_waits_until_promises_have_ended() {
        let (programs, next) = (Programs::new(), Program::start());
        Program::start().bind(&programs);
        let (sender, bound) = mpsc::channel();
        let others = programs.clone();
        let binding = move || {
            next.bind(&others);
            sender.send(next).unwrap();
        };
        let mut thread = None;
        let decide = || {
            thread = Some(std::thread::spawn(binding));
            let early = bound.recv_timeout(Duration::from_millis(300));
            assert!(early.is_err(), "it came in between");
        };
        programs.end(decide).await;
        thread.unwrap().join().unwrap();
        assert!(programs.may_act());
    }
}
