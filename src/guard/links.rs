//! Sends the lives of a session to its guard: each new one over every connection whose registration may still count, and
//! all of them over each new connection.
//!
//! The guard may keep a registration whose connection the session takes for broken: it was only slow. Such a registration
//! must learn of every later life too, or the guard would revoke the lease while that life lives on.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::life::Life;
use super::lives::MOST_LIVES;
use super::socket::Socket;
use super::wire::Request;

/// Messages with lives that a guard may leave unanswered before the session ends that registration. So many always fit
/// into the buffer of a socket, together with the `goodbye`.
const MOST_UNANSWERED: usize = 32;
/// Connections whose registration may still count, beside the present one.
const MOST_FORMER: usize = 2;

/// The lives of a session beside its own process, and its connections with the guard.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    lives: Vec<Life>,
    /// The eldest first.
    links: VecDeque<Link>,
}

#[derive(Debug)]
struct Link {
    socket: Arc<Socket>,
    unanswered: usize,
}

impl Link {
    /// Sends a life. Returns `false` if this link's registration is no more.
    fn send(&mut self, life: &Life) -> io::Result<bool> {
        let (request, files) = life.message();
        if self.unanswered >= MOST_UNANSWERED {
            self.leave();
            return Ok(false);
        }
        self.unanswered += 1;
        match self.socket.try_send(&request.encode(), &files) {
            Ok(()) => Ok(true),
            // The guard closes a connection only after it has forgotten the registration.
            Err(error) if is_closed(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn leave(&self) {
        // Whoever has closed the other end knows nothing of us any more.
        let _ = self.socket.try_send(&Request::Goodbye.encode(), &[]);
    }
}

impl Links {
    /// Adds a life, and sends it. It must not act before.
    ///
    /// # Errors
    ///
    /// Says why the guard was not told.
    pub(crate) fn add(&self, life: Life) -> Result<(), String> {
        let mut inner = self.lock();
        inner.lives.retain(|life| !life.has_ended());
        if inner.lives.len() >= MOST_LIVES {
            return Err(format!(
                "the session has {MOST_LIVES} lives beside its own, which is the limit"
            ));
        }
        let Inner { lives, links } = &mut *inner;
        let mut left = VecDeque::new();
        let mut failed = None;
        for mut link in links.drain(..) {
            match link.send(&life) {
                Ok(true) => left.push_back(link),
                Ok(false) => {}
                Err(error) => {
                    failed = Some(error);
                    left.push_back(link);
                }
            }
        }
        *links = left;
        lives.push(life);
        match failed {
            None => Ok(()),
            Some(error) => Err(format!("the guard could not be told of it: {error}")),
        }
    }

    /// Sends all lives over a new connection, and from now on each further one.
    pub(super) fn join(&self, socket: &Arc<Socket>) -> io::Result<()> {
        let mut inner = self.lock();
        inner.lives.retain(|life| !life.has_ended());
        for life in &inner.lives {
            let (request, files) = life.message();
            socket.try_send(&request.encode(), &files)?;
        }
        let unanswered = 0;
        inner.links.push_back(Link {
            socket: Arc::clone(socket),
            unanswered,
        });
        Ok(())
    }

    /// Notes that the guard has added a life.
    pub(super) fn answered(&self, socket: &Arc<Socket>) {
        let mut inner = self.lock();
        let mut links = inner.links.iter_mut();
        if let Some(link) = links.find(|link| Arc::ptr_eq(&link.socket, socket)) {
            link.unanswered = link.unanswered.saturating_sub(1);
        }
    }

    /// Ends all registrations but that of this connection, which guards the lease now.
    pub(super) fn supersede(&self, socket: &Arc<Socket>) {
        self.lock().links.retain(|link| {
            let present = Arc::ptr_eq(&link.socket, socket);
            if !present {
                link.leave();
            }
            present
        });
    }

    /// Takes a connection for broken. Its registration counts on if it has a lease.
    pub(super) fn retire(&self, socket: &Arc<Socket>, has_lease: bool) {
        let mut inner = self.lock();
        if !has_lease {
            inner.links.retain(|link| {
                let other = !Arc::ptr_eq(&link.socket, socket);
                if !other {
                    link.leave();
                }
                other
            });
        }
        while inner.links.len() > MOST_FORMER {
            inner.links.pop_front().iter().for_each(Link::leave);
        }
    }

    /// Ends all registrations: the session is closed.
    pub(super) fn leave(&self) {
        self.lock().links.drain(..).for_each(|link| link.leave());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}
