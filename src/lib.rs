//! Leader election on etcd in which the longest-running node wins.
mod announcement;
mod candidate;
#[allow(unreachable_pub)]
mod core;
mod driver;
mod election;
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
