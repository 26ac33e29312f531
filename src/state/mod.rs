//! Holds the state that the driver writes and the handles read: status, terms, rosters, the session's state.

mod anchor;
mod announcement;
mod as_of;
mod backlog;
mod challenged;
mod deadlines;
mod evacuation;
mod fields;
mod kept_share;
mod local_status;
mod number;
mod plain;
mod roster;
#[cfg(feature = "serde")]
mod serialize;
mod session_state;
mod term;
mod version_mark;

pub(crate) use anchor::{announce, announced, check_room, keep_anchor};
pub use announcement::Announcement;
pub(crate) use announcement::{MAX_IDENTITY, home, share};
pub use as_of::AsOf;
pub(crate) use as_of::{Complete, Confirmed};
pub(crate) use backlog::Backlog;
pub use challenged::{ChallengeStep, Challenged, Received, Suspicion};
pub(crate) use deadlines::{Deadlines, LeaseDeadline, TermDeadline};
pub use eldest_core::status::Status;
pub(crate) use evacuation::{EVACUATED, MAX_REASON, author, check_data_center};
pub use evacuation::{EVACUATION, Evacuate, Evacuation};
pub(crate) use fields::{
    READY_AT_ONCE, check_hand_over, in_queue_since, is_cold, leading, not_serving, ready,
    ready_for, say_the_same, serving, set_aside, version, versioned, warm,
};
pub(crate) use kept_share::{KeptRecord, SHARES, keep_share, whole_seconds};
pub use local_status::{Held, LocalState};
pub(crate) use local_status::{LocalStatus, LocalStatusWriter, LocalStatuses};
pub use number::number;
pub use plain::steers;
pub use roster::{Member, Roster};
pub(crate) use session_state::live_lease;
pub use session_state::{LeaseView, SessionState};
pub(crate) use term::TermState;
pub use term::{Deadline, Term};
pub use version_mark::VersionMark;
pub(crate) use version_mark::marked;
