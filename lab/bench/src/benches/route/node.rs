//! A node of the bench `route`: a candidate that takes requests while it leads, and passes others on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use axum::Router;
use axum::extract::{Path, State};
use axum::routing::any;
use eldest::{Announcement, BoxError, CancellationToken, Leadership, Session, SessionOptions};
use eldest_http::{ForwardToLeader, Limits};
use tokio::net::TcpListener;

use crate::peer::{Asked, Context};

/// How long a node works on a request of the load, so that requests are in progress during hand-overs.
const WORK: Duration = Duration::from_millis(2);

/// The numbers of the requests that the node carried out.
type Taken = Arc<Mutex<Vec<u64>>>;

/// Answers the bench's questions to a node.
pub(super) async fn serve(context: &Context, mut asked: Asked, name: &str) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let me = Announcement::default().with_address(at.to_string());
    let options = SessionOptions::new(at.to_string()).ttl(context.ttl);
    let session = Session::connect(&context.endpoints, options.announcement(me)).await?;
    let election = session.election(name)?;
    let shutdown = CancellationToken::new();
    let _run = election.spawn(shutdown.clone(), async |leadership: Leadership| {
        leadership.lost().cancelled().await;
        Ok::<_, BoxError>(())
    });
    let taken = Taken::default();
    let app = app(Arc::clone(&taken)).layer(ForwardToLeader::new(&election).await?);
    tokio::spawn(eldest_http::serve(
        listener,
        app,
        Limits::default(),
        shutdown,
    ));
    asked.answer(Ok(vec![f64::from(at.port())]))?;
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match *words {
            ["leads"] => Ok(yes(election.is_leader())),
            ["waits"] => Ok(yes(matches!(
                election.status(),
                eldest::Status::Waiting { .. }
            ))),
            ["step-down"] => match election.step_down().await {
                Ok(()) => Ok(Vec::new()),
                Err(error) => Err(anyhow!(error)),
            },
            ["taken"] => {
                let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(taken.iter().map(|request| *request as f64).collect())
            }
            _ => bail!("no question {words:?}"),
        };
        asked.answer(answer)?;
    }
    Ok(())
}

fn yes(is_so: bool) -> Vec<f64> {
    vec![f64::from(u8::from(is_so))]
}

fn app(taken: Taken) -> Router {
    let take = async |State(taken): State<Taken>, Path(request): Path<u64>| {
        tokio::time::sleep(WORK).await;
        taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request);
    };
    Router::new()
        .route("/", any(async || "4711"))
        .route("/requests/{request}", any(take))
        .with_state(taken)
}
