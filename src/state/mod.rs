//! What the driver writes and the handles read: status, terms, rosters, the state of the session.

mod announcement;
mod as_of;
mod backlog;
mod local_status;
mod roster;
mod session_state;
mod status;
mod term;

pub use announcement::{Announced, Announcement};
pub use as_of::AsOf;
pub(crate) use as_of::{Complete, Confirmed};
pub(crate) use backlog::Backlog;
pub use local_status::{Held, LocalState};
pub(crate) use local_status::{LocalStatus, LocalStatusWriter, LocalStatuses};
pub use roster::{Member, Roster};
pub use session_state::{LeaseView, SessionState};
pub use status::Status;
pub use term::{Deadline, Term};
pub(crate) use term::{LeaseDeadline, LeaseDeadlines, TermState};
