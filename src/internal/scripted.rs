//! Makes terms without a candidate, which a test extends and ends, and abandons sessions as a crash would.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;

use super::SharedEnv;
use crate::driver::{Command, CommandReceiver, Commands};
use crate::election::Claim;
use crate::session::Handle;
use crate::state::{Deadlines, LeaseDeadline, LocalStatusWriter, TermState};
use crate::{Election, Leadership, Session, Status, Term};
use eldest_core::action::Left;
use eldest_core::reason::LostReason;
use eldest_core::time::Time;
use eldest_etcd::runtime::Watched;
pub use eldest_etcd::runtime::{Clock, Scripted};

/// The lease id of a scripted term.
const LEASE: i64 = 1;

/// A term without a candidate: the test extends its lease and ends it.
pub struct ScriptedTerm {
    ending: Ending,
    /// Kept here, because the watchdog holds it weakly.
    _deadlines: Arc<Deadlines>,
}

/// Ends a term as the core does.
#[derive(Clone)]
struct Ending {
    lease_deadline: Arc<LeaseDeadline>,
    shared: Arc<TermState>,
    grace: Duration,
}

impl ScriptedTerm {
    /// Makes a term under a lease that is trusted until `deadline`, with the session's grace period.
    pub fn new(session: &Session, env: SharedEnv, name: &str, deadline: Time, token: i64) -> Self {
        let grace = session.shared().settings.grace;
        let deadlines = Deadlines::new(grace, false);
        let lease_deadline = deadlines.begin(LEASE, deadline);
        let watched: Arc<dyn Watched> = Arc::clone(&deadlines) as Arc<dyn Watched>;
        env.watch(Arc::downgrade(&watched));
        let key = format!("{}{LEASE:x}", session.shared().settings.prefix(name));
        let shared = TermState::new(
            env,
            Arc::clone(&session.shared().pool),
            Arc::clone(&lease_deadline).into(),
            name.into(),
            key.into_bytes().into(),
            token,
        );
        let ending = Ending {
            lease_deadline,
            shared,
            grace,
        };
        Self {
            ending,
            _deadlines: deadlines,
        }
    }

    /// Returns a view of the term.
    pub fn term(&self) -> Term {
        Term {
            shared: Arc::clone(&self.ending.shared),
        }
    }

    /// Returns the leadership of the term. Its holder's requests are answered without etcd.
    pub fn leadership(&self, session: &Session) -> Leadership {
        let (commands, asked) = Commands::channel();
        let shared = Arc::clone(&session.handle().shared);
        shared.env.spawn(obey(asked, self.ending.clone()).boxed());
        let handle = Handle { commands, shared };
        Leadership::new(Claim::new(handle, 1, Duration::ZERO, 1, self.term()))
    }

    /// Shows this session as the leader of the election in this term.
    pub fn elect(&self, election: &Election) {
        let writer = LocalStatusWriter::new(Arc::clone(&election.local), 1);
        writer.take();
        writer.elected(self.term(), 1);
        writer.status(Status::leading(self.ending.shared.token));
    }

    /// Reports a verified renewal. Returns false if the lease is no longer trusted.
    pub fn renewed(&self, deadline: Time) -> bool {
        self.ending.lease_deadline.extend(deadline)
    }

    /// Ends the trust in the lease.
    pub fn lease_lost(&self) {
        self.ending.lease_deadline.end();
    }

    /// Ends the term, and its work at `cutoff`.
    pub fn end(&self, reason: LostReason, cutoff: Time) {
        self.ending.shared.end(reason, cutoff, true);
    }

    /// Ends the term with the deadline that terms have for that reason.
    pub fn lose(&self, reason: LostReason) {
        self.ending.end(reason);
    }
}

impl Ending {
    fn end(&self, reason: LostReason) {
        let now = self.shared.env.now();
        let brief = now.after(self.grace);
        let (cutoff, valid) = match reason {
            LostReason::LeaseExpiring
            | LostReason::Stalled
            | LostReason::NotServing
            | LostReason::Reassigned
            | LostReason::Evacuated
            | LostReason::Ordered => (brief, true),
            LostReason::Shutdown | LostReason::SessionClosed | LostReason::RuntimeGone => {
                (self.lease_deadline.time(), true)
            }
            _ => (brief, false),
        };
        // No later renewal extends it.
        self.shared.end(reason, cutoff, valid);
    }
}

/// Answers requests in place of the driver.
async fn obey(mut asked: CommandReceiver, ending: Ending) {
    while let Some(command) = asked.next().await {
        match command {
            Command::End { reason, .. } => ending.end(reason),
            Command::Joined {
                state: Some(parting),
                ..
            } => drop(parting.reply.send(Left::Saved)),
            // Callers send these after the end of the work.
            Command::AwaitEnd { reply, .. } | Command::AwaitRelease { reply, .. } => {
                let _ = reply.send(());
            }
            Command::Proclaim { reply, .. }
            | Command::Serve { reply, .. }
            | Command::Warm { reply, .. }
            | Command::Ready { reply, .. }
            | Command::HandOver { reply, .. } => {
                drop(reply.send(Ok(!ending.shared.is_lost())));
            }
            _ => {}
        }
    }
}

/// Abandons a session: its tasks stop, its connections close, and no others are made. Returns false if its environment
/// cannot.
pub fn crash(session: &Session) -> bool {
    let shared = session.shared();
    let crashed = shared.env.crash();
    if crashed {
        shared.pool.hang_up();
    }
    crashed
}
