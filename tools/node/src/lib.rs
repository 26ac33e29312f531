//! The program of the project's image: one node that campaigns in one election, reports the leader, and does guarded
//! work while it leads. Environment variables configure it; see `config.rs`. It is a library so that the fault harness
//! can be such a node, too.

mod config;
mod look;
mod orders;
mod ready;
pub mod record;
pub mod register;
mod seen;
#[cfg(feature = "tls")]
pub mod tls;
mod voice;
mod web;
mod work;

use std::time::Duration;

use anyhow::{Context, Result};
use eldest::guard::Guard;
use eldest::{Announcement, CancellationToken, Election, ErrorKind, Session, SessionOptions};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::config::Config;
use crate::orders::Orders;
use crate::record::{Event, History};
use crate::register::Register;
use crate::seen::Seen;
use crate::voice::Voice;

/// How long idle threads, such as those that resolved a name, live; short, so that they do not count as left behind.
const IDLE_THREADS: Duration = Duration::from_millis(200);

/// Runs the node that the environment describes until a signal asks it to stop (SIGTERM, SIGINT).
///
/// # Errors
///
/// The environment is invalid, or an error occurred that a retry cannot mend.
pub fn main() -> Result<()> {
    let config = Config::from_env()?;
    // Standard output has the node's own lines; the library logs to standard error.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_keep_alive(IDLE_THREADS)
        .build()?;
    runtime.block_on(node(config))
}

/// Runs the node. It returns an error that a retry cannot mend.
async fn node(config: Config) -> Result<()> {
    let voice = Voice::new(&config);
    let register = Register::open(&config)?;
    let orders = Orders::open(&config)?;
    let history = History::open(&config).await?;
    history.record(Event::Baseline);
    let shutdown = CancellationToken::new();
    stop_on_signal(shutdown.clone(), voice.clone(), history.clone());

    let listener = TcpListener::bind(&config.listen)
        .await
        .with_context(|| format!("LISTEN={}", config.listen))?;
    let session = Session::connect_lazy(&config.endpoints, options(&config)?)?;
    let (leading, leads) = watch::channel(None);
    let (seeing, seen) = watch::channel(Seen::Nothing);
    let web = web::Web {
        leads: leads.clone(),
        seen,
        session: session.state(),
        shutdown: shutdown.clone(),
    };
    // The server answers while the node leaves, too.
    let gone = CancellationToken::new();
    let server = tokio::spawn(web.serve(listener, gone.clone()));

    let election = ready::election(&config, session.election(&config.election)?)?;
    let looking = tokio::spawn(
        look::Look {
            me: config.clone(),
            session: session.clone(),
            election: election.clone(),
            leads,
            seeing,
            voice: voice.clone(),
            history: history.clone(),
        }
        .follow(shutdown.clone()),
    );
    let me = config.clone();
    let work = work::Work {
        me: config,
        election: election.clone(),
        leading,
        voice: voice.clone(),
        history: history.clone(),
        register,
        orders,
    };
    let owning = ready::own(&me, &session, &history, shutdown.clone());
    let leading = lead(&me, &election, &work, &history, shutdown.clone());
    let (ran, owned) = tokio::join!(leading, ended(owning, &shutdown));
    looking.await??;
    drop((work, election));
    leave(session, &voice).await?;
    gone.cancel();
    server.await??;
    history.finish().await;
    ran.and(owned)?;
    Ok(())
}

/// Campaigns until `shutdown`, or until that ends for another reason; the node stops then.
async fn lead(
    me: &Config,
    election: &Election,
    work: &work::Work,
    history: &History,
    shutdown: CancellationToken,
) -> eldest::Result<()> {
    let runner = election.runner();
    let runner = match me.ready {
        Some(_) => runner.prepare(|following| ready::prepare(me, following.stopped())),
        None => runner,
    };
    let ran = runner
        .run(shutdown.clone(), |leadership| work.lead(leadership))
        .await;
    if !shutdown.is_cancelled() {
        history.record(Event::Left);
        shutdown.cancel();
    }
    ran.map(|_| ())
}

/// Awaits the node's partitions, and stops the node if an error ended them.
async fn ended(
    owning: impl Future<Output = eldest::Result<()>>,
    shutdown: &CancellationToken,
) -> eldest::Result<()> {
    let owned = owning.await;
    if owned.is_err() {
        shutdown.cancel();
    }
    owned
}

async fn leave(session: Session, voice: &Voice) -> Result<()> {
    match session.close().await {
        Ok(()) => voice.say("I have left"),
        // This error is harmless: keys that are left in etcd expire.
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            voice.say(&format!("I go; etcd did not confirm it: {error}"));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

#[cfg_attr(
    not(feature = "tls"),
    expect(
        clippy::unnecessary_wraps,
        reason = "only TLS asks more of the environment"
    )
)]
fn options(config: &Config) -> Result<SessionOptions> {
    let options = SessionOptions::new(&config.name).announcement(announcement(config));
    let options = match config.round_trip {
        Some(round_trip) => options.wan(round_trip),
        None => options.ttl(config.ttl),
    };
    let options = match &config.credentials {
        Some(credentials) => options.credentials(credentials.clone()),
        None => options,
    };
    let options = match &config.guard {
        // Without the agent, a crash only costs a TTL.
        Some(socket) => options.guard(Guard::agent_at(socket).optional()),
        None => options,
    };
    let options = match &config.challenges {
        Some(challenges) => options.challenges(challenges.clone()),
        None => options,
    };
    #[cfg(feature = "tls")]
    let options = tls::of_environment(options)?;
    Ok(options)
}

/// Returns the announcement of a new candidate; a leader adds the time since which it leads.
fn announcement(config: &Config) -> Announcement {
    let me = Announcement::default().with_address(&config.advertise);
    match &config.data_center {
        Some(data_center) => me.with_data_center(data_center),
        None => me,
    }
}

fn stop_on_signal(shutdown: CancellationToken, voice: Voice, history: History) {
    tokio::spawn(async move {
        tokio::select! {
            () = eldest::shutdown_signal() => {}
            // The node shuts down on its own.
            () = shutdown.cancelled() => return,
        }
        voice.say("I was asked to stop");
        history.record(Event::Left);
        shutdown.cancel();
    });
}
