//! Leader election on etcd in which the longest-running node wins.
mod announcement;
mod candidate;
#[cfg_attr(not(feature = "unstable-sim"), allow(unreachable_pub))]
mod core;
mod driver;
mod election;
#[cfg_attr(not(feature = "unstable-sim"), allow(unreachable_pub))]
mod env;
mod error;
mod etcd;
mod facts;
mod leadership;
mod observer;
mod options;
mod roster;
mod run;
mod session;
mod term;
#[cfg(feature = "testing")]
pub mod testing;

pub use announcement::{Announced, Announcement};
pub use candidate::{Candidate, Status};
pub use core::candidacy::Follow;
pub use core::reason::{EndReason, LostReason};
pub use election::Election;
pub use error::{BoxError, Error, ErrorKind, Result};
pub use etcd_client;
pub use leadership::Leadership;
pub use observer::Observer;
pub use options::SessionOptions;
pub use roster::{Member, Roster};
pub use session::{LeaseView, Session, SessionState};
pub use term::{Deadline, Term};
pub use tokio_util::sync::CancellationToken;

/// The seam through which the unchanged library runs in simulated time. Not covered by semver.
#[cfg(feature = "unstable-sim")]
#[doc(hidden)]
pub mod sim {
    pub use crate::core::time::Time;
    pub use crate::env::{Env, Watched};
}
