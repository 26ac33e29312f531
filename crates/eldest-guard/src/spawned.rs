//! Starts a guard for one session: this program once more, which becomes a guard in [`init`].
//!
//! The guard runs in a Unix session of its own, so that no signal of a terminal reaches it. It closes all inherited
//! files, so that it keeps no port and no pipe of the program open. While the program lives, the guard ignores the
//! signals with which a process manager ends all processes of a service. It ends when the session says goodbye, when it
//! has deleted the keys of the dead process, after the lease's TTL without success, or when such a signal comes after
//! the program's death.

use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use eldest_process::socket::Socket;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::agent::Agent;
use crate::attending;
use crate::limits::Limits;
use crate::wire::Reply;
use crate::{Etcd, Machine};

/// The first argument of a program that must become a guard. A person's command never looks like this.
const GUARD: &str = "__eldest_guard";

static INITIALISED: AtomicBool = AtomicBool::new(false);

/// The process that a session has started. If this value is dropped before [`Spawned::end`], the async runtime has
/// ended before the session was closed. Then the guard continues: it deletes the keys when this process has ended.
#[derive(Debug)]
pub struct Spawned(Child);

impl Spawned {
    /// Ends the guard, which has ended already or is no longer useful. A guard without its session deletes no key.
    pub fn end(mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that this process can have a guard of its own.
///
/// # Errors
///
/// Says why it cannot, and what to do.
pub fn check() -> Result<(), String> {
    if !INITIALISED.load(Ordering::Acquire) {
        return Err(
            "Guard::spawned() starts this program once more: call eldest::guard::init() first in main, where that second \
             process becomes the guard"
                .to_owned(),
        );
    }
    if rustix::process::getpid().is_init() {
        return Err(
            "this process is number 1 of its container, and the kernel would kill its guard with it: use Guard::agent()"
                .to_owned(),
        );
    }
    Ok(())
}

/// Starts the guard, and sends it what it needs to reach etcd.
///
/// # Errors
///
/// Says why the guard could not be started.
pub async fn start(access: &Value) -> Result<(Spawned, Socket), String> {
    let failed = |error: std::io::Error| format!("the guard could not be started: {error}");
    let (socket, theirs) = Socket::pair().map_err(failed)?;
    let child = Command::new("/proc/self/exe")
        .arg0(std::env::args_os().next().unwrap_or_default())
        .arg(GUARD)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let spawned = Spawned(child.map_err(failed)?);
    match socket.send(access, &[]).await {
        Ok(()) => Ok((spawned, socket)),
        Err(error) => {
            spawned.end();
            Err(failed(error))
        }
    }
}

/// The surroundings of a guard: its machine, and its way to etcd.
pub type Surroundings = (Arc<dyn Machine>, Arc<dyn Etcd>);

/// Becomes a guard if this process was started as one. `surroundings` makes them, in the guard's own runtime, from what
/// [`start`] sent.
pub fn init(surroundings: impl FnOnce(&Value) -> Result<Surroundings, String>) {
    if std::env::args_os().nth(1).is_none_or(|word| word != GUARD) {
        INITIALISED.store(true, Ordering::Release);
        return;
    }
    std::process::exit(i32::from(be_guard(surroundings).is_err()));
}

/// Runs the guard until it ends.
fn be_guard(
    surroundings: impl FnOnce(&Value) -> Result<Surroundings, String>,
) -> Result<(), Box<dyn std::error::Error>> {
    close_inherited()?;
    // Neither Ctrl-C nor a closed terminal must end the guard together with the program.
    rustix::process::setsid()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let signals = Signals::new()?;
        let socket: OwnedFd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let socket = Socket::new(socket)?;
        let Some(access) = socket.receive().await? else {
            return Ok(());
        };
        let agent = match surroundings(&access.message) {
            Ok((machine, etcd)) => Agent::start(&machine, etcd, Limits::alone(), None),
            Err(reason) => {
                socket.send_now(&Reply::Refused { reason }.encode());
                return Ok(());
            }
        };
        let share = agent.share(&socket)?;
        tokio::select! {
            () = attending::attend(Arc::clone(&agent), socket, share) => {}
            () = dismissed(&agent, signals) => {}
        }
        Ok(())
    })
}

/// Closes the files that the program had open and did not close on `exec`: the ports at which it listened, and pipes
/// whose readers wait for their end. This process itself has only its standard streams open yet.
fn close_inherited() -> std::io::Result<()> {
    let open = std::fs::read_dir("/proc/self/fd")?;
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok()
    };
    // The directory's own descriptor is among them; it is closed once the list is complete.
    let open: Vec<RawFd> = open.filter_map(number).collect();
    for file in open.into_iter().filter(|file| *file > 2) {
        let _ = nix::unistd::close(file);
    }
    Ok(())
}

/// The signals with which a process manager ends a service. A signal with a stream does not end the process.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn next(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Waits for a signal after the program's death. Then the guard has time for the session's linger, and for one attempt
/// to delete the keys, because a process manager may send the signal at the moment of the death.
async fn dismissed(agent: &Agent, mut signals: Signals) {
    loop {
        signals.next().await;
        if let Some(linger) = agent.bereaved() {
            agent.hurry.cancel();
            let time = linger + agent.etcd.request_timeout();
            agent.machine.sleep(time).await;
            return;
        }
    }
}
