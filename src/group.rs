//! Announces nodes as members of a group under their sessions' leases, and lists the members.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use crate::election::{Candidate, Opening};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Observer;
use crate::session::{Handle, Session, Use, check_name};
use crate::state::{Announcement, Roster, Status};
use eldest_core::candidate::{CandidateConfig, WatchScope};
use eldest_core::kv::Reach;
use eldest_etcd::runtime::timeout;

/// A group of nodes that announce themselves. Its members have no order and no leader.
///
/// A member's key is bound to the one lease of its [`Session`]. The key disappears when the member leaves, when its
/// session closes, and a TTL after its process died. A group needs no session, lease or connection besides those of
/// elections.
///
/// If the sessions allow [challenges](crate::SessionOptions::challenges), the members watch each other, and the key of a
/// silent member disappears after its time to answer.
///
/// **Not guaranteed**: that a listed member is alive, because its key outlives it by up to a TTL or that time; nor that
/// a missing one is dead, because it may be joining again. Use an [election](Session::election) where only one node may act.
///
/// The keys are `<namespace>/~members/<name>/<lease id in hex>`; the value is the [announcement](Announcement). A group
/// is a cheap handle from [`Session::group`]; clone it freely.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
/// use eldest::Announcement;
///
/// let workers = session.group("billing/workers")?;
/// let me = Announcement::default().with_address("10.0.0.1:8080");
/// let mut membership = workers.clone().announcement(me).join().await?;
///
/// for member in workers.members().await?.members() {
///     println!("{} is at {:?}", member.identity(), member.announcement().address());
/// #   assert_eq!(member.announcement().address(), Some("10.0.0.1:8080"));
/// }
/// membership.leave().await?; // the key is gone
/// # assert!(workers.members().await?.is_vacant());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Group {
    handle: Handle,
    name: Arc<str>,
    prefix: Arc<str>,
    announcement: Option<Announcement>,
}

impl Session {
    /// Returns the group with that name. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: [`Session::election`] would refuse the name. Groups have their own names, apart from those of
    /// elections, locks, semaphores and partitions.
    pub fn group(&self, name: impl AsRef<str>) -> Result<Group> {
        let name = name.as_ref();
        check_name(name)?;
        let shared = self.shared();
        let (name, _) = shared.names.register(name, Use::Group)?;
        let prefix = shared.settings.prefix(&Use::Group.path(&name));
        Ok(Group {
            handle: self.handle().clone(),
            name,
            prefix: prefix.into(),
            announcement: None,
        })
    }
}

impl Group {
    /// Returns the group's name within the session's namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the prefix of the group's keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Sets this node's announcement for later joins through this handle. It replaces the session's
    /// [announcement](crate::SessionOptions::announcement).
    pub fn announcement(mut self, announcement: impl Into<Announcement>) -> Self {
        self.announcement = Some(announcement.into());
        self
    }

    /// Joins as a member, and returns once the member's key is in etcd.
    ///
    /// From then on, the session keeps the key alive, and writes it again if the lease was lost or the key was deleted.
    /// A session can be a member of a group only once. The call retries while etcd cannot be reached; add a timeout if
    /// it should give up.
    ///
    /// # Errors
    ///
    /// `AlreadyCampaigning`: this session is already a member. Others as for
    /// [`Election::campaign`](crate::Election::campaign). After an error, nothing is left in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: if the call is dropped before it completes, the key is deleted in the background.
    pub async fn join(&self) -> Result<GroupMembership> {
        // With challenges, the members watch each other.
        let watch_scope = match self.handle.shared.settings.challenges {
            Some(_) => WatchScope::Auto,
            None => WatchScope::Predecessor,
        };
        let config = CandidateConfig {
            watch_scope,
            present: true,
            ..CandidateConfig::default()
        };
        let (name, prefix) = (Arc::clone(&self.name), self.prefix_bytes());
        let opening = Opening {
            announcement: self.announcement.as_ref(),
            ..Opening::default()
        };
        let candidate =
            Candidate::join(&self.handle, name, prefix, None, None, opening, |_| config).await?;
        Ok(GroupMembership { candidate })
    }

    /// Reads all members, in the order in which they joined, by one linearizable read. The roster has no
    /// [leader](Roster::leader).
    ///
    /// # Errors
    ///
    /// As [`Election::leader`](crate::Election::leader).
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn members(&self) -> Result<Roster> {
        let shared = &self.handle.shared;
        let members = shared.roster(self.prefix.as_bytes(), Reach::Children);
        Ok(members.await?.unled())
    }

    /// Returns a stream of the members: the current ones first, then every change.
    ///
    /// An observer needs no lease, and only the permission to read. While etcd cannot be reached, the stream waits.
    ///
    /// # Errors
    ///
    /// `Closed`: the session was closed. If etcd refuses the watch, the error arrives as an item of the stream.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, and so is waiting for the stream's next item.
    pub async fn observe(&self) -> Result<Observer> {
        let (handle, prefix) = (self.handle.clone(), self.prefix_bytes());
        Ok(Observer::start(handle, prefix, Reach::Children)
            .await?
            .unled())
    }

    /// Waits until the group has at least `n` members, and returns all of them, as a barrier for nodes that begin
    /// together.
    ///
    /// The group had the returned members at some moment during the call: an observer's view wakes the call, and a
    /// linearizable read confirms it. A member may leave at any time afterwards. The caller need not be a member. The
    /// call retries while etcd cannot be reached; add a timeout if it should give up.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let other = Session::connect([etcd.endpoint()], SessionOptions::new("node-b")).await?;
    /// # let _other = other.group("billing/import")?.join().await?;
    /// let importers = session.group("billing/import")?;
    /// let membership = importers.join().await?;
    /// let all = importers.wait_for(2).await?;
    /// println!("{} nodes begin to import", all.members().len());
    /// # drop(membership);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput`: `n` is 0, which every group has. `Closed`: the session was closed. `PermissionDenied`,
    /// `Unauthenticated`, `Rejected`: etcd refused the watch or the read.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn wait_for(&self, n: usize) -> Result<Roster> {
        if n == 0 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "a wait for 0 members of {:?} would wait for nothing; the least is 1",
                    self.name
                ),
            ));
        }
        let shared = &self.handle.shared;
        let mut changes = self.observe().await?;
        let mut next = changes.next().await;
        loop {
            let seen = next.ok_or_else(Error::closed)??;
            if seen.count() >= n {
                match self.members().await {
                    Ok(members) if members.count() >= n => return Ok(members),
                    // The view is older than the read: its next state follows.
                    Ok(_) => {}
                    Err(error) if !error.is_transient() => return Err(error),
                    // The view may still be right: the next read follows, unless the view changes before.
                    Err(_) => {
                        let pause = shared.settings.request_timeout;
                        let newer = timeout(&*shared.env, pause, changes.next()).await;
                        next = newer.unwrap_or(Some(Ok(seen)));
                        continue;
                    }
                }
            }
            next = changes.next().await;
        }
    }

    fn prefix_bytes(&self) -> Arc<[u8]> {
        self.prefix.as_bytes().into()
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("name", &self.name)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// A node's membership in a [`Group`].
///
/// Dropping it leaves the group, in the background.
#[must_use = "dropping a membership leaves the group"]
pub struct GroupMembership {
    candidate: Candidate,
}

impl GroupMembership {
    /// Returns the state of the member's key from memory, without asking etcd: [`Status::Present`], or
    /// [`Status::Joining`] while the key is written again, or [`Status::Ended`], and no other status.
    ///
    /// With [challenges](crate::SessionOptions::challenges), the status is also `Joining` while no read of the last time
    /// to answer shows that the session is unchallenged: others may have deleted the key.
    ///
    /// A session that cannot reach etcd does not know whether the key still exists. Until [`Session::state`] is live
    /// again, `Present` is the last known state.
    pub fn status(&self) -> Status {
        self.candidate.status()
    }

    /// Returns a channel with the status: the current status at once, then every change. The first `changed()` returns
    /// at once, for the current status. A slow reader sees only the latest status.
    pub fn subscribe(&self) -> watch::Receiver<Status> {
        self.candidate.subscribe()
    }

    /// Replaces this member's whole announcement (at most 32 KiB), now and whenever its key is written again.
    ///
    /// # Errors
    ///
    /// As [`Candidate::proclaim`].
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, etcd may or may not have the announcement; the next key will have it.
    pub async fn proclaim(&self, announcement: impl Into<Announcement>) -> Result<()> {
        self.candidate.proclaim(announcement).await
    }

    /// Leaves the group, and returns once etcd has confirmed that the key is gone.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is repeated in the background,
    /// and this call may be repeated.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: leaving continues in the background.
    pub async fn leave(&mut self) -> Result<()> {
        self.candidate.leave().await
    }
}

impl fmt::Debug for GroupMembership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupMembership")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
