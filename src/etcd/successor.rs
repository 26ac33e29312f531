//! Hands a keepalive stream that was opened at another endpoint to the one that it replaces.
//!
//! The stream in use takes its successor before its next renewal, so no renewal waits for a change of the endpoint.

use std::sync::{Mutex, PoisonError};

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};

use super::lane::Ticket;

/// An open keepalive stream on which nothing is outstanding.
pub(super) struct Opened {
    pub(super) ticket: Ticket,
    pub(super) keeper: LeaseKeeper,
    pub(super) answers: LeaseKeepAliveStream,
}

/// Where the keepalive stream of a lease finds its successor.
pub(super) struct Successor {
    pub(super) lease: i64,
    state: Mutex<State>,
}

struct State {
    /// The endpoint of the newest stream.
    at: usize,
    opened: Option<Opened>,
}

impl Successor {
    /// For a stream at the endpoint of that number.
    pub(super) fn new(lease: i64, at: usize) -> Self {
        let state = Mutex::new(State { at, opened: None });
        Self { lease, state }
    }

    /// The endpoint at which the next renewal is sent.
    pub(super) fn at(&self) -> usize {
        self.lock().at
    }

    pub(super) fn offer(&self, opened: Opened) {
        let mut state = self.lock();
        state.at = opened.ticket.at;
        state.opened = Some(opened);
    }

    pub(super) fn take(&self) -> Option<Opened> {
        self.lock().opened.take()
    }

    /// The offer was of no use: renewals stay at that endpoint.
    pub(super) fn stays(&self, at: usize) {
        self.lock().at = at;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
