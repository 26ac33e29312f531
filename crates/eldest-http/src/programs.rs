//! Binds the elections that a node leads on behalf of a program to the life of that program: `POST /v1/program`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{Request, State};
use axum::response::Response;
use eldest::Error;
use eldest::internal::SharedEnv;
use eldest::internal::process::Process;
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

/// The programs that have bound themselves, and are alive. `None`: none has ever done so.
type Alive = Option<Vec<Program>>;

#[derive(Debug)]
struct Program {
    process: Arc<Process>,
    /// Whether the guards of the sessions, if they have any, await its end.
    guarded: bool,
}

/// The programs on whose behalf a node leads, as far as it can see them.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    alive: watch::Sender<Alive>,
    /// Whether the guards await the end of the only process that may act.
    all_guarded: Arc<AtomicBool>,
}

impl Programs {
    pub(super) fn new() -> Self {
        Self {
            alive: watch::Sender::new(None),
            all_guarded: Arc::default(),
        }
    }

    /// Notes that no other process may act than one whose end the guards await.
    pub(super) fn are_all_guarded(&self) {
        self.all_guarded.store(true, Ordering::Release);
    }

    /// Returns `true` if the guards await the end of every process that may act on this node's answers. If none has bound
    /// itself, each caller may.
    pub(super) fn are_guarded(&self) -> bool {
        let alive = self.alive.borrow();
        let guarded = |alive: &Vec<Program>| alive.iter().all(|program| program.guarded);
        self.all_guarded.load(Ordering::Acquire) || alive.as_ref().is_some_and(guarded)
    }

    /// Returns `true` unless every program that bound itself has ended.
    pub(super) fn may_act(&self) -> bool {
        may_act(&self.alive.borrow())
    }

    /// Completes when a program may act: at once if none has ever bound itself.
    pub(super) async fn begin(&self) {
        // The sender is ours, so it stays.
        let _ = self.alive.subscribe().wait_for(may_act).await;
    }

    /// Completes when every program that bound itself has ended, and there was one. `then` runs before another one can bind
    /// itself.
    pub(super) async fn end(&self, then: impl FnOnce()) {
        let mut alive = self.alive.subscribe();
        // While this value is borrowed, nobody changes it.
        let _ended = alive.wait_for(|alive| !may_act(alive)).await;
        then();
    }

    /// Binds the elections to one more process. Returns `false` if too many are bound.
    pub(super) fn bind(&self, env: &SharedEnv, process: &Arc<Process>, guarded: bool) -> bool {
        let mut bound = true;
        let is_new = self.alive.send_if_modified(|alive| {
            let alive = alive.get_or_insert_default();
            // While a process lives, nothing else has its number.
            let same =
                |known: &Arc<Process>| known.number() == process.number() && !known.has_ended();
            let mut known = alive.iter().map(|program| &program.process);
            if known.any(same) {
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

    /// Forgets a process when it has ended.
    async fn outlive(&self, process: &Arc<Process>) {
        tracing::info!(target: "eldest::http", pid = process.number(), "elections bound to a program");
        process.ended().await;
        let pid = process.number();
        self.alive.send_modify(|alive| {
            let alive = alive.get_or_insert_default();
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

fn may_act(alive: &Alive) -> bool {
    alive.as_ref().is_none_or(|alive| !alive.is_empty())
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
    let sessions: Vec<_> = node.sessions_on_behalf().collect();
    let Some(first) = sessions.first() else {
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
    // From now on, answers may need no timer.
    let guarded = node.outlive(&process);
    if !guarded {
        let unguarded = |error: Error| Problem::try_again("unguarded", error.report().to_string());
        for session in sessions {
            // Answers that it received before it was bound.
            let until = session.env().now().after(session.grace());
            session.promise(until).map_err(unguarded)?;
        }
    }
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
