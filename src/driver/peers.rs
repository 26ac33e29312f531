//! Exchanges signs of life with other sessions in a task beside the driver, and reports to the driver which are silent.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use eldest_peers::{Alive, Answering, Asking, Event, Machine, Watched};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tracing::Instrument;

use super::Command;
use super::inbox::WeakCommands;
use crate::metrics;
use crate::state::Deadlines;
use eldest_core::challenge::Elder;
use eldest_core::time::Time;
use eldest_etcd::runtime::SharedEnv;

/// The sessions to be asked for signs of life, by their leases.
type Asked = BTreeMap<i64, Watched>;

/// The parts from which the exchange is built.
pub(super) struct Exchange {
    pub(super) env: SharedEnv,
    /// The session's port, if it has one.
    pub(super) port: Option<Answering>,
    /// How long a clean read lets the session lead.
    pub(super) lead: Duration,
    pub(super) deadlines: Arc<Deadlines>,
    pub(super) commands: WeakCommands,
    pub(super) identity: Arc<str>,
}

/// The driver's end of the exchange, which ends when this is dropped.
pub(super) struct Peers(watch::Sender<Asked>);

impl Peers {
    /// Starts the task.
    pub(super) fn start(exchange: Exchange) -> Self {
        let (asked, to_ask) = watch::channel(Asked::new());
        let env = Arc::clone(&exchange.env);
        env.spawn(exchange.run(to_ask).in_current_span().boxed());
        Self(asked)
    }

    /// Replaces the sessions that are asked for signs of life.
    pub(super) fn ask(&self, elders: Vec<Elder>) {
        let asked = elders.into_iter().map(|elder| {
            let Elder {
                lease,
                address,
                lead,
            } = elder;
            (lease, Watched { address, lead })
        });
        self.0.send_replace(asked.collect());
    }
}

impl Exchange {
    async fn run(self, mut to_ask: watch::Receiver<Asked>) {
        let machine: Arc<dyn Machine> = Arc::new(Surroundings {
            env: Arc::clone(&self.env),
            identity: Arc::clone(&self.identity),
        });
        let mut asking = Asking::new(Arc::clone(&machine));
        let alive = || self.alive();
        let answer = async {
            match &self.port {
                Some(port) => port.run(&*machine, &alive).await,
                None => pending().await,
            }
        };
        let mut answer = pin!(answer);
        let mut silent = BTreeSet::new();
        loop {
            tokio::select! {
                biased;
                changed = to_ask.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let asked = to_ask.borrow_and_update().clone();
                    silent.retain(|lease| asked.contains_key(lease));
                    asking.watch(asked);
                }
                () = &mut answer => {}
                event = asking.next() => self.report(event, &to_ask.borrow(), &mut silent),
            }
            metrics::silent(&self.identity, silent.len());
        }
    }

    /// Returns the state by which the port answers: no sign of life is sent once the driver has not read cleanly for a
    /// while, whatever keeps it.
    fn alive(&self) -> Option<Alive> {
        let (lease, until) = self.deadlines.clean_reads()?;
        let lead = self.lead;
        Some(Alive { lease, lead, until })
    }

    fn report(&self, event: Event, asked: &Asked, silent: &mut BTreeSet<i64>) {
        let (lease, is_silent) = match event {
            Event::Silent(lease) => (lease, true),
            Event::Heard(lease) => (lease, false),
            _ => return,
        };
        let (identity, id) = (&*self.identity, format!("{lease:x}"));
        let address = asked.get(&lease).map_or("", |watched| &watched.address);
        if is_silent {
            silent.insert(lease);
            tracing::info!(target: "eldest::session", identity, lease = id, address, "no sign of life");
        } else {
            silent.remove(&lease);
            tracing::info!(target: "eldest::session", identity, lease = id, address, "sign of life again");
        }
        if let Some(commands) = self.commands.upgrade() {
            // If the driver is gone, it suspects nobody.
            let _ = commands.send_at_once(Command::Suspect { lease, is_silent });
        }
    }
}

/// The session's environment, as the exchange sees it.
struct Surroundings {
    env: SharedEnv,
    identity: Arc<str>,
}

impl Machine for Surroundings {
    fn now(&self) -> Time {
        self.env.now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.env.sleep(duration)
    }

    fn random(&self) -> u64 {
        self.env.random()
    }

    fn refuses_connections(&self, error: &io::Error) {
        let identity = &*self.identity;
        tracing::warn!(target: "eldest::session", identity, %error, "no connection accepted at the port for signs of life");
    }
}
