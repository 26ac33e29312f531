//! Implements `eldest agent`: guards the sessions of this host's processes, and shows what an agent guards.

mod answers;
mod permissions;
mod status;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use eldest::internal::agent::{self, Agent, SOCKET, SocketFile};
use eldest_http::contract::command::Listening;

pub(crate) use self::status::{Unreached, ask, summary};
use crate::answering::Names;
use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format};
use crate::stop::Stop;

const HEADING: &str = "Agent";
/// How often the agent checks that its path still names its socket.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Guard the sessions of this host's processes: when a process has ended, delete its keys at once
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Guard the sessions of this host's processes: when a process has ended, delete its keys at once, so that the \
    next candidate leads within milliseconds instead of a TTL.\n\n\
    Sessions that name the agent as their guard register with it. The kernel notifies the agent when every thread of their \
    process has ended. An agent that ends, hangs or does not reach etcd ends no term: until there is an agent again, a crash \
    costs a TTL, as without an agent. The agent keeps no key and no lease in etcd. Its user in etcd needs `readwrite` on \
    the namespaces that it guards.\n\n\
    The directory of the socket must exist. Every user who may write to the socket may be guarded: by default the agent's \
    user and the group of --socket-group. The agent stops on SIGTERM, SIGINT or SIGHUP and removes its \
    socket.",
    after_help = "Examples:
  # Guard the sessions of the users in the group eldest
  eldest agent --socket-group eldest --endpoints http://10.0.0.1:2379,http://10.0.0.2:2379
  # The same, with metrics for Prometheus
  eldest agent --socket-group eldest --listen 127.0.0.1:8471
  # Show what the agent guards
  eldest agent status",
    subcommand_value_name = "status",
    disable_help_subcommand = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    /// The socket at which sessions reach the agent
    #[arg(
        long, global = true, value_name = "PATH", default_value = SOCKET, env = "ELDEST_SOCKET", hide_env_values = true,
        help_heading = HEADING
    )]
    socket: PathBuf,

    /// The permission bits of the socket, octal: every user who may write to it may be guarded
    #[arg(
        long, value_name = "MODE", value_parser = crate::socket::mode, default_value = "0660", env = "ELDEST_SOCKET_MODE",
        hide_env_values = true, help_heading = HEADING
    )]
    socket_mode: u32,

    /// The group of the socket, by its name or number [default: the agent's own]
    #[arg(
        long, value_name = "GROUP", env = "ELDEST_SOCKET_GROUP", hide_env_values = true, help_heading = HEADING
    )]
    socket_group: Option<String>,

    /// Answer GET /metrics and GET /healthz at this address, without TLS; port 0 takes any free port
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = HEADING)]
    listen: Option<SocketAddr>,

    #[command(flatten)]
    names: Names,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Status(status::Args),
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    match args.action {
        Some(Action::Status(_)) => status::run(global, &args.socket).await,
        None => serve(global, args).await,
    }
}

/// Guards until a signal comes or the agent cannot continue.
async fn serve(global: &Global, args: Args) -> Result<Code> {
    if args.listen.is_none() {
        args.names.refused_without("--listen")?;
    }
    let mut stop = Stop::new()?;
    let mut socket = SocketFile::from(&*args.socket).mode(args.socket_mode);
    if let Some(group) = &args.socket_group {
        socket = socket.group(permissions::group(group)?);
    }
    let files = permissions::raise_open_files()?;
    // Recording begins before the agent starts, because earlier measurements would be lost.
    let http = match args.listen {
        Some(at) => Some(answers::listen(at, &args.names).await?),
        None => None,
    };
    let connection = &global.connection;
    let options = connection.session_options("eldest-agent")?;
    let agent = Arc::new(agent::listen(&connection.urls(), options, socket)?);
    announce(global.output, &args.socket.display().to_string())?;
    let mut server = match http {
        Some(http) => {
            announce(global.output, &http.shown(global.output))?;
            Some(http.serve(Arc::clone(&agent)))
        }
        None => None,
    };
    let path = args.socket.display();
    tracing::info!(socket = %path, open_files = files, "the agent listens");
    let broken = async {
        match &mut server {
            Some(server) => server.broken().await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        () = agent.run() => Ok(()),
        () = stop.asked() => Ok(()),
        error = broken => Err(error),
        () = replaced(&agent) => Err(anyhow!(
            "the socket {path} was removed or replaced, so that no session can reach this agent"
        )),
    };
    agent.close();
    tracing::info!(socket = %path, "the agent stops");
    if let Some(server) = server {
        server.stop().await;
    }
    ended.map(|()| Code::Done)
}

fn announce(format: Format, listening: &str) -> Result<()> {
    match format {
        Format::Text => output::say(format_args!("listening at {listening}"))?,
        Format::Json => output::say_json(&Listening {
            listening: listening.to_owned(),
        })?,
    }
    Ok(())
}

/// Waits until the path no longer names this agent's socket.
async fn replaced(agent: &Agent) {
    while agent.is_found() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
