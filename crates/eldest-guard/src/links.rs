//! Sends the lives of a session to its guard: each new one over every connection whose registration may still count,
//! and all of them over each new connection. Sets the timer of the session's promises, which is one of the lives.
//!
//! The guard may keep a registration whose connection the session considers broken although it was only slow. Such a
//! registration must learn of every later life too, or the guard would delete the keys while that life continues.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use eldest_process::socket::Socket;

use crate::life::Life;
use crate::lives::MOST_LIVES;
use crate::timer::Promises;
use crate::wire::Request;
use eldest_core::time::Time;

/// How many messages with lives a guard may leave unanswered before the session ends that registration. This number
/// always fits into the buffer of a socket, together with the `goodbye`.
const MOST_UNANSWERED: usize = 32;
/// How many connections may have a registration that still counts, beside the present one.
pub const MOST_FORMER: usize = 2;

/// The lives of a session beside its own process, and its connections with the guard.
#[derive(Debug, Default)]
pub struct Links(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    lives: Vec<Known>,
    /// Made for the first promise.
    promises: Option<Promises>,
    /// The connections, the eldest first.
    links: VecDeque<Link>,
}

#[derive(Debug)]
struct Known {
    life: Life,
    what: What,
    /// True once the life was sent to every guard whose registration may count.
    sent: bool,
}

/// The identity of a life, by which the session recognises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Other,
    /// The process with this number. While it lives, no other process has the number.
    Process(u32),
    Promises,
}

#[derive(Debug)]
struct Link {
    socket: Arc<Socket>,
    unanswered: usize,
}

impl Link {
    /// Sends a life. Returns `false` if this link's registration has ended.
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
        // A guard that has closed its end has already forgotten this session.
        let _ = self.socket.try_send(&Request::Goodbye.encode(), &[]);
    }
}

impl Links {
    /// Adds a life, and sends it. The life must not act before this returns.
    ///
    /// # Errors
    ///
    /// Says why the guard was not informed.
    pub fn add(&self, life: Life) -> Result<(), String> {
        self.lock().add(What::Other, || Ok(life))
    }

    /// Adds the process with that number, unless the guard knows it. Promises to that process need no timer once this
    /// has returned.
    ///
    /// # Errors
    ///
    /// Says why the guard was not informed.
    pub fn outlive(
        &self,
        number: u32,
        file: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> Result<(), String> {
        self.lock()
            .add(What::Process(number), || file().map(Life::Process))
    }

    /// Makes the guard leave the session's leases alone until `until`, even if the session's process is dead. The clock
    /// showed `now` just before.
    ///
    /// # Errors
    ///
    /// Says why the guard was not informed: the promise must not be given.
    pub fn promise(&self, now: Time, until: Time) -> Result<(), String> {
        let failed = |error| format!("the timer of the promises failed: {error}");
        let mut inner = self.lock();
        let mut promises = match inner.promises.take() {
            Some(promises) => promises,
            None => Promises::new().map_err(failed)?,
        };
        let set = promises.last(now, until).map_err(failed);
        let added = inner.add(What::Promises, || promises.share().map(Life::Timer));
        inner.promises = Some(promises);
        set.and(added)
    }

    /// Sends all lives over a new connection, and each later life from now on.
    ///
    /// # Errors
    ///
    /// The connection broke, or the guard does not read.
    pub fn join(&self, socket: &Arc<Socket>) -> io::Result<()> {
        let mut inner = self.lock();
        inner.lives.retain(|known| !known.life.has_ended());
        for known in &inner.lives {
            let (request, files) = known.life.message();
            socket.try_send(&request.encode(), &files)?;
        }
        let unanswered = 0;
        inner.links.push_back(Link {
            socket: Arc::clone(socket),
            unanswered,
        });
        Ok(())
    }

    /// Records that the guard has added a life.
    pub fn answered(&self, socket: &Arc<Socket>) {
        let mut inner = self.lock();
        let mut links = inner.links.iter_mut();
        if let Some(link) = links.find(|link| Arc::ptr_eq(&link.socket, socket)) {
            link.unanswered = link.unanswered.saturating_sub(1);
        }
    }

    /// Ends all registrations except that of this connection, which guards the lease now.
    pub fn supersede(&self, socket: &Arc<Socket>) {
        self.lock().links.retain(|link| {
            let present = Arc::ptr_eq(&link.socket, socket);
            if !present {
                link.leave();
            }
            present
        });
    }

    /// Treats a connection as broken. Its registration still counts if it has a lease.
    pub fn retire(&self, socket: &Arc<Socket>, has_lease: bool) {
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
    pub fn leave(&self) {
        self.lock().links.drain(..).for_each(|link| link.leave());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Adds a life, unless the guard knows it.
    fn add(&mut self, what: What, life: impl FnOnce() -> io::Result<Life>) -> Result<(), String> {
        let Self { lives, links, .. } = self;
        let is_it =
            |known: &Known| what != What::Other && known.what == what && !known.life.has_ended();
        if !lives.iter().any(is_it) {
            lives.retain(|known| !known.life.has_ended());
            // One place is always free for the timer: promises to further processes need it.
            let most = MOST_LIVES - usize::from(what != What::Promises);
            if lives.len() >= most {
                return Err(format!(
                    "the session has {most} lives beside its own, which is the limit"
                ));
            }
            let life = life().map_err(|error| format!("it cannot be shared: {error}"))?;
            let sent = false;
            lives.push(Known { life, what, sent });
        }
        // The life was just added at the end if the list had no equal one.
        let place = lives.iter().position(is_it).unwrap_or(lives.len() - 1);
        let known = &mut lives[place];
        if !known.sent {
            send_to_all(links, &known.life)
                .map_err(|error| format!("the guard could not be informed of it: {error}"))?;
            known.sent = true;
        }
        Ok(())
    }
}

/// Sends a life over every connection.
fn send_to_all(links: &mut VecDeque<Link>, life: &Life) -> io::Result<()> {
    let mut outcome = Ok(());
    links.retain_mut(|link| {
        let sent = link.send(life);
        let stays = !matches!(sent, Ok(false));
        if let Err(error) = sent {
            outcome = Err(error);
        }
        stays
    });
    outcome
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cgroup, by a file with the content of its `cgroup.events`.
    fn cgroup(populated: &str) -> io::Result<Life> {
        let events = rustix::fs::memfd_create("cgroup.events", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::io::pwrite(&events, format!("populated {populated}\n").as_bytes(), 0)?;
        let kill = None;
        Ok(Life::Cgroup { events, kill })
    }

    #[tokio::test]
    async fn a_new_connection_gets_each_life_that_has_not_ended() -> io::Result<()> {
        let links = Links::default();
        let full = cgroup("1")?;
        for life in [cgroup("1"), cgroup("0")] {
            links.add(life?).expect("no guard is there to be informed");
        }
        let (session, guard) = Socket::pair()?;
        links.join(&Arc::new(session))?;
        let guard = Socket::new(guard)?;
        let received = guard.try_receive()?.expect("the guard's end is open");
        assert_eq!(received.message, full.message().0.encode());
        let further = guard.try_receive();
        assert_eq!(further.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        Ok(())
    }
}
