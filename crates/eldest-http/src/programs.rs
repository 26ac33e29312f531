//! Keeps the promises of a node to the callers on whose behalf it leads, and binds its elections to the life of a program:
//! `POST /v1/program`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use eldest::internal::process::Process;
use eldest::internal::{self, Inside, SharedEnv};
use eldest::{CancellationToken, Term};
use eldest_core::time::Time;
use futures::FutureExt;
use http::{Method, StatusCode};
use tokio::sync::watch;

use super::App;
use super::answer::json as answer;
use super::body;
use super::contract::{BindProgram, BoundProgram};
use super::peer::{self, Peer};
use super::problem::{Problem, not_allowed};

/// The largest number of programs that are bound at a time.
const MOST: usize = 64;

/// The programs on whose behalf a node leads, and its promises to callers: one ledger for all its elections and partitions.
#[derive(Debug, Clone)]
pub(super) struct Programs(watch::Sender<Ledger>);

#[derive(Debug)]
struct Ledger {
    /// The bound programs that are alive. `None` if no program was ever bound: then each caller may act.
    alive: Option<Vec<Program>>,
    /// The end of the last promise that was given before a program was bound. Its caller may live, whichever program
    /// ends.
    promised: Time,
}

#[derive(Debug)]
struct Program {
    process: Arc<Process>,
    /// True if the guards of the sessions, if there are any, await the end of the program.
    guarded: bool,
}

/// The answer to a caller that requests time to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    /// The caller may act for a grace period.
    Given,
    /// Only bound programs may act, and the caller is none of them.
    ForOthers,
    /// The session's guard could end the lease while the caller acts, so no caller may act.
    Unguarded,
}

impl Program {
    /// While a process lives, no other process has its number.
    fn is(&self, process: &Process) -> bool {
        let number = self.process.number();
        number == process.number() && !self.process.has_ended() && !process.has_ended()
    }
}

impl Ledger {
    fn may_act(&self) -> bool {
        self.alive.as_ref().is_none_or(|alive| !alive.is_empty())
    }
}

impl Programs {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Ledger {
            alive: None,
            promised: Time::ZERO,
        }))
    }

    /// Binds the elections to that process for good. Its end is not awaited here.
    pub(super) fn only(&self, process: &Arc<Process>, guarded: bool) {
        let process = Arc::clone(process);
        self.0
            .send_modify(|ledger| ledger.alive = Some(vec![Program { process, guarded }]));
    }

    /// Promises a caller that no other node leads within a grace period of that session, which may have a guard. The
    /// guard learns the promise before the caller does.
    pub(super) fn promise(&self, session: Inside<'_>, caller: Option<&Process>) -> Promise {
        let until = session.env().now().after(session.grace());
        let mut guarded = None;
        // One locked section reads and updates the ledger, so that no program is bound or removed in between.
        self.0.send_if_modified(|ledger| {
            guarded = match &ledger.alive {
                None => {
                    ledger.promised = ledger.promised.max(until);
                    Some(false)
                }
                Some(alive) => caller.and_then(|caller| {
                    let bound = alive.iter().find(|program| program.is(caller));
                    bound.map(|program| program.guarded)
                }),
            };
            false
        });
        match guarded {
            None => Promise::ForOthers,
            // The guard awaits the end of this program.
            Some(true) => Promise::Given,
            Some(false) if session.promise(until).is_ok() => Promise::Given,
            Some(false) => Promise::Unguarded,
        }
    }

    /// Returns `true` unless every program that bound itself has ended.
    pub(super) fn may_act(&self) -> bool {
        self.0.borrow().may_act()
    }

    /// Completes when a program may act: at once if none was ever bound.
    pub(super) async fn begin(&self) {
        // This value owns the sender, so the channel stays open.
        let _ = self.0.subscribe().wait_for(Ledger::may_act).await;
    }

    /// Completes when every program that bound itself has ended, and there was one. `then` runs before another one can bind
    /// itself.
    pub(super) async fn end(&self, then: impl FnOnce()) {
        let mut ledger = self.0.subscribe();
        // While this value is borrowed, the ledger cannot change.
        let _ended = ledger.wait_for(|ledger| !ledger.may_act()).await;
        then();
    }

    /// Completes when no caller may act any longer on the promises of a term: a grace period after its end has begun
    /// or, if `orphaned` is cancelled because every program has ended, when the last promise to another caller is over.
    pub(super) async fn may_act_no_longer(
        &self,
        session: Inside<'_>,
        term: &Term,
        orphaned: &CancellationToken,
    ) {
        let env = session.env();
        term.lost().cancelled().await;
        // The work must end before its cutoff, at which it would be dropped and logged as faulty.
        let end = env.now().after(session.grace()).min(internal::cutoff(term));
        let others = async {
            orphaned.cancelled().await;
            // This promise no longer grows: once a program is bound, only bound programs receive promises.
            let promised = self.0.borrow().promised;
            env.wake_at(promised).await;
        };
        tokio::select! {
            () = env.wake_at(end) => {}
            () = others => {}
        }
    }

    /// Binds the elections to one more process. Returns `false` if too many are bound.
    pub(super) fn bind(&self, env: &SharedEnv, process: &Arc<Process>, guarded: bool) -> bool {
        let mut bound = true;
        let is_new = self.0.send_if_modified(|ledger| {
            let alive = ledger.alive.get_or_insert_default();
            if alive.iter().any(|known| known.is(process)) {
                return false;
            }
            bound = alive.len() < MOST;
            if bound {
                alive.push(Program {
                    process: Arc::clone(process),
                    guarded,
                });
            }
            bound
        });
        if is_new {
            let (programs, process) = (self.clone(), Arc::clone(process));
            env.spawn(async move { programs.outlive(&process).await }.boxed());
        }
        bound
    }

    /// Removes a process from the ledger when it has ended.
    async fn outlive(&self, process: &Arc<Process>) {
        tracing::info!(target: "eldest::http", pid = process.number(), "elections bound to a program");
        process.ended().await;
        let pid = process.number();
        self.0.send_modify(|ledger| {
            let alive = ledger.alive.get_or_insert_default();
            alive.retain(|known| !Arc::ptr_eq(&known.process, process));
            if alive.is_empty() {
                tracing::warn!(
                    target: "eldest::http", pid,
                    "the program has ended: this node leaves its elections until a program binds itself again"
                );
            } else {
                tracing::info!(target: "eldest::http", pid, "a program has ended; others are bound");
            }
        });
    }
}

/// Answers `/v1/program`.
pub(super) async fn bind(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Problem> {
    if request.method() != Method::POST {
        return Ok(not_allowed(&request, "POST,OPTIONS"));
    }
    let node = &app.node;
    let conflict = |code, detail: String| Problem::new(StatusCode::CONFLICT, code, detail);
    let Some(first) = node.sessions_on_behalf().next() else {
        let detail =
            "this node leads no election and owns no partitions on behalf of a program".to_owned();
        return Err(conflict("not_on_behalf", detail));
    };
    if let Some(number) = node.program {
        let detail = format!("this node leads on behalf of process {number} alone (--guard-pid)");
        return Err(conflict("program_is_fixed", detail));
    }
    let env = first.env();
    let peer = request.extensions().get::<Peer>().cloned();
    let asked: BindProgram = body::read(request, &**env).await?;
    let process = peer::named(peer.as_ref(), asked.holder, asked.holder_pid)?;
    let process = process.ok_or_else(|| body::bad("give `holder` or `holder_pid`"))?;
    let guarded = node.outlive(&process);
    if !node.programs.bind(env, &process, guarded) {
        let detail = format!("{MOST} programs are bound already");
        return Err(Problem::try_again("too_many_programs", detail));
    }
    let led = node.led_on_behalf();
    let elections = led.map(|shown| shown.election.name().to_owned());
    let bound = BoundProgram {
        pid: process.number(),
        elections: elections.collect(),
    };
    Ok(answer(StatusCode::OK, &bound))
}
