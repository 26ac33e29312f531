//! Binds the elections that a node leads on behalf of a program to the life of that program: `POST /v1/program`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use eldest::internal::process::Process;
use eldest::internal::{Inside, SharedEnv};
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
type Alive = Option<Vec<Arc<Process>>>;

/// The programs on whose behalf a node leads, as far as it can see them.
#[derive(Debug, Clone)]
pub(super) struct Programs(watch::Sender<Alive>);

impl Programs {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Returns `true` unless every program that bound itself has ended.
    pub(super) fn may_act(&self) -> bool {
        may_act(&self.0.borrow())
    }

    /// Completes when a program may act: at once if none has ever bound itself.
    pub(super) async fn begin(&self) {
        // The sender is ours, so it stays.
        let _ = self.0.subscribe().wait_for(may_act).await;
    }

    /// Completes when every program that bound itself has ended, and there was one.
    pub(super) async fn end(&self) {
        let _ = self.0.subscribe().wait_for(|alive| !may_act(alive)).await;
    }

    /// Binds the elections to one more process. Returns `false` if too many are bound.
    fn bind(&self, env: &SharedEnv, process: &Arc<Process>) -> bool {
        let mut bound = true;
        let is_new = self.0.send_if_modified(|alive| {
            let alive = alive.get_or_insert_default();
            // While a process lives, nothing else has its number.
            let same =
                |known: &Arc<Process>| known.number() == process.number() && !known.has_ended();
            if alive.iter().any(same) {
                return false;
            }
            bound = alive.len() < MOST;
            if bound {
                alive.push(Arc::clone(process));
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
        self.0.send_modify(|alive| {
            let alive = alive.get_or_insert_default();
            alive.retain(|known| !Arc::ptr_eq(known, process));
            if alive.is_empty() {
                tracing::info!(
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
    let led: Vec<_> = node.led_on_behalf().collect();
    let Some(first) = led.first() else {
        let detail = "this node leads no election on behalf of a program".to_owned();
        return Err(conflict("not_on_behalf", detail));
    };
    if let Some(number) = node.program {
        let detail = format!("this node leads on behalf of process {number} alone (--guard-pid)");
        return Err(conflict("program_is_fixed", detail));
    }
    let env = Inside::from(&first.election).env();
    let peer = request.extensions().get::<Peer>().cloned();
    let asked: BindProgram = body::read(request, &**env).await?;
    let process = peer::named(peer.as_ref(), asked.holder, asked.holder_pid)?;
    let process = process.ok_or_else(|| body::bad("give `holder` or `holder_pid`"))?;
    if !node.programs.bind(env, &process) {
        let detail = format!("{MOST} programs are bound already");
        return Err(Problem::try_again("too_many_programs", detail));
    }
    let elections = led.iter().map(|shown| shown.election.name().to_owned());
    let bound = BoundProgram {
        pid: process.number(),
        elections: elections.collect(),
    };
    Ok(answer(StatusCode::OK, &bound))
}
