//! Small containers that do not depend on elections.

mod channel;
mod lazy_watch;

pub(crate) use channel::{Receiver, Sender, channel};
pub(crate) use lazy_watch::{LazyWatch, LazyWatchSender};
