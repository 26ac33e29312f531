//! Adds lives to a guarded session: what must have ended, beside the session's own process, before the guard deletes
//! the session's keys.

use crate::error::Result;
use crate::session::Session;
pub use eldest_guard::Life;

/// Adds a life to a session, and returns when the message to its guard has been sent. The life must not begin to act
/// before that. Without a connection to the guard, the session sends it before it registers a lease; without a guard,
/// this does nothing.
///
/// If the guard refuses the life, it forgets the session, which [`Session::guard_state`] shows.
///
/// # Errors
///
/// `Unguarded`: the session has too many lives, or the guard does not accept the message. The life must not begin to
/// act then.
pub fn also(session: &Session, life: Life) -> Result<()> {
    session.shared().also(life)
}
