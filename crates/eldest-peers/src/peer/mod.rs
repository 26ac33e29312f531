//! Decides when a watched session is connected to, suspected and trusted again, with time as an argument.
//!
//! A closed or refused connection is suspect at once, a silence after its limit. A session that speaks again was suspected
//! wrongly: from then on both wait, twice as long each time. Replies that only say that the session cannot be asked lead
//! to no suspicion.

#[cfg(test)]
mod tests;

use std::time::Duration;

use eldest_core::time::Time;

use crate::pace::{FIRST_REPLY, silence};
use crate::wire::Reply;

/// The longest wait for the next suspicion after wrong ones, and how long signs of life must come without a gap until
/// these are forgotten.
const LONGEST: Duration = Duration::from_secs(60);
/// The number of wrong suspicions from which on the wait is the longest, even for the shortest limit.
const MOST_WRONG: u32 = 12;
/// The pause before the second connection attempt; each further one is twice as long.
const RECONNECT: Duration = Duration::from_millis(50);
/// The longest pause between two connection attempts.
const LONGEST_RECONNECT: Duration = Duration::from_secs(5);

/// An event of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// The connection is open, and the hello is sent.
    Connected,
    /// The session sent this reply, after any number of signs of life.
    Replied(Reply),
    /// The connection could not be made, has ended, or has sent bytes that are no reply.
    Closed,
}

/// A decision for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Make a connection and send the hello.
    Connect,
    /// Drop the connection, or the attempt to make one.
    Close,
    /// Report that the session is suspected.
    Silent,
    /// Report that the session speaks again.
    Heard,
}

/// The connection, with the time at which it is due for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// Closed; the next attempt begins at that time.
    Closed(Time),
    /// In the making; the attempt is given up at that time.
    Connecting(Time),
    /// Open; it is closed at that time unless a reply arrives.
    Open(Time),
}

/// The evidence that the last connection has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// No sign of life, and nothing else.
    None,
    /// Signs of life on one connection, since that time.
    Alive(Time),
    /// The session is gone, or its process is.
    Gone,
    /// The session cannot be asked, which says nothing of its life.
    Refused,
}

/// One watched session.
pub(crate) struct Peer {
    /// The silence after which the session is suspected.
    limit: Duration,
    link: Link,
    evidence: Evidence,
    /// True if the session is suspected, which was reported.
    is_suspected: bool,
    /// The last sign of life, or the beginning of the watch.
    quiet_since: Time,
    /// How long the present silence may last.
    patience: Duration,
    /// The number of suspicions after which the session has spoken again.
    wrong: u32,
    /// The number of connections in a row that brought no sign of life.
    failures: u32,
    random: Box<dyn Fn() -> u64 + Send>,
}

impl Peer {
    /// Watches a session that may lead for `lead` after a clean read. The first connection is due at once.
    pub(crate) fn new(now: Time, lead: Duration, random: Box<dyn Fn() -> u64 + Send>) -> Self {
        let limit = silence(lead);
        Self {
            limit,
            link: Link::Closed(now),
            evidence: Evidence::None,
            is_suspected: false,
            quiet_since: now,
            patience: limit.max(FIRST_REPLY),
            wrong: 0,
            failures: 0,
            random,
        }
    }

    /// Returns when [`Peer::timeout`] is due.
    pub(crate) fn due(&self) -> Time {
        let (Link::Closed(at) | Link::Connecting(at) | Link::Open(at)) = self.link;
        self.suspect_at()
            .map_or(at, |suspect_at| at.min(suspect_at))
    }

    /// Takes an event of the connection.
    pub(crate) fn handle(&mut self, now: Time, input: Input) -> Vec<Output> {
        debug_assert!(!matches!(self.link, Link::Closed(_)), "{input:?}");
        let mut out = Vec::new();
        match input {
            Input::Connected => self.link = Link::Open(now.after(self.limit.max(FIRST_REPLY))),
            Input::Replied(Reply::Alive) => self.alive(now, &mut out),
            Input::Replied(Reply::Busy | Reply::OtherVersion) => {
                self.evidence = Evidence::Refused;
                self.failures = u32::MAX;
                self.close(now, &mut out);
            }
            Input::Replied(Reply::Unknown) | Input::Closed => {
                self.evidence = Evidence::Gone;
                self.close(now, &mut out);
            }
        }
        self.judge(now, &mut out);
        out
    }

    /// Acts on the time.
    pub(crate) fn timeout(&mut self, now: Time) -> Vec<Output> {
        let mut out = Vec::new();
        if now.since(self.due()) > self.limit {
            self.resume(now);
        }
        match self.link {
            Link::Closed(at) if at <= now => self.connect(now, &mut out),
            Link::Connecting(at) | Link::Open(at) if at <= now => {
                if let Evidence::Alive(_) = self.evidence {
                    self.evidence = Evidence::None;
                }
                self.close(now, &mut out);
            }
            _ => {}
        }
        self.judge(now, &mut out);
        out
    }

    fn alive(&mut self, now: Time, out: &mut Vec<Output>) {
        self.link = Link::Open(now.after(self.limit));
        self.quiet_since = now;
        self.failures = 0;
        let since = match self.evidence {
            Evidence::Alive(since) => since,
            _ => now,
        };
        self.evidence = Evidence::Alive(since);
        if now.since(since) >= LONGEST {
            self.wrong = 0;
        }
        if self.wrong == 0 {
            self.patience = self.limit;
        }
        if std::mem::take(&mut self.is_suspected) {
            self.wrong = (self.wrong + 1).min(MOST_WRONG);
            let wait = self.limit.saturating_mul(1 << self.wrong).min(LONGEST);
            self.patience = wait.saturating_sub(self.jitter(wait / 4));
            out.push(Output::Heard);
        }
    }

    fn connect(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.evidence == Evidence::Refused {
            self.evidence = Evidence::None;
            self.quiet_since = now;
            self.patience = self.patience.max(FIRST_REPLY);
        }
        self.link = Link::Connecting(now.after(self.limit.max(FIRST_REPLY)));
        out.push(Output::Connect);
    }

    /// Closes the connection. The next attempt follows after a pause.
    fn close(&mut self, now: Time, out: &mut Vec<Output>) {
        let pause = RECONNECT.saturating_mul(1 << self.failures.min(10));
        let pause = pause.min(LONGEST_RECONNECT);
        self.failures = self.failures.saturating_add(1);
        self.link = Link::Closed(now.after(pause.saturating_sub(self.jitter(pause / 2))));
        out.push(Output::Close);
    }

    /// Counts every wait from now: this process was paused, so it has not listened.
    fn resume(&mut self, now: Time) {
        self.quiet_since = now;
        if let Link::Connecting(at) | Link::Open(at) = &mut self.link {
            *at = (*at).max(now.after(self.limit));
        }
    }

    fn judge(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.suspect_at().is_some_and(|at| at <= now) {
            self.is_suspected = true;
            out.push(Output::Silent);
        }
    }

    /// Returns when the session is suspected if no sign of life arrives before.
    fn suspect_at(&self) -> Option<Time> {
        match self.evidence {
            _ if self.is_suspected => None,
            Evidence::Refused => None,
            Evidence::Gone if self.wrong == 0 => Some(self.quiet_since),
            _ => Some(self.quiet_since.after(self.patience)),
        }
    }

    /// Returns a random part of `most`.
    fn jitter(&self, most: Duration) -> Duration {
        // A pause is a minute at most, which 64 bits hold in nanoseconds.
        let product = most.as_nanos() * u128::from((self.random)());
        Duration::from_nanos((product >> 64) as u64)
    }
}
