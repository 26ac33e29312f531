//! Announces nodes as members of a group under their sessions' leases, and tells who the members are.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use crate::election::Candidate;
use crate::error::Result;
use crate::observe::Observer;
use crate::session::{Handle, Session, Use, check_name};
use crate::state::{Announcement, Roster, Status};
use eldest_core::candidate::{CandidateConfig, WatchScope};
use eldest_core::kv::Reach;

/// The nodes that say that they are there: members beside one another, of which nobody leads and nobody waits.
///
/// A member's key is bound to the one lease of its [`Session`], so it goes when the member leaves, when its session closes,
/// and a TTL after its process died. It needs no session, lease or connection of its own beside elections.
///
/// **Not guaranteed**: that a member that is listed is alive, for its key outlives it by up to a TTL, nor that one that is
/// not listed is dead, for it may just be joining again. Who must be alone to act needs an
/// [election](Session::election).
///
/// The keys are `<namespace>/~members/<name>/<lease id in hex>`, the value is the [announcement](Announcement). A
/// cheap handle from [`Session::group`]; clone it freely.
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
    /// A group by name. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the name is as it must not be for [`Session::election`]. Groups have names of their own, apart from
    /// those of elections, locks, semaphores and partitions.
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
    /// Its name within the session's namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The prefix of its keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What this node announces when it joins afterwards through this handle, in place of what the session
    /// [announces](crate::SessionOptions::announcement).
    pub fn announcement(mut self, announcement: impl Into<Announcement>) -> Self {
        self.announcement = Some(announcement.into());
        self
    }

    /// Becomes a member; returns once the key stands in etcd. From then on the key is kept, and put anew by itself after a
    /// lease was lost or somebody deleted it. A session is a member of a group once.
    ///
    /// Goes on trying while etcd cannot be reached; give it a timeout if that is not wanted.
    ///
    /// # Errors
    ///
    /// `AlreadyCampaigning`: this session is a member. Others as for
    /// [`Election::campaign`](crate::Election::campaign). Nothing is left in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: dropped before it is ready, the key is taken away again in the background.
    pub async fn join(&self) -> Result<GroupMembership> {
        let config = CandidateConfig {
            watch_scope: WatchScope::Predecessor,
            present: true,
            ..CandidateConfig::default()
        };
        let (name, prefix) = (Arc::clone(&self.name), self.prefix_bytes());
        let announcement = self.announcement.as_ref();
        let candidate =
            Candidate::stand(&self.handle, name, prefix, None, None, announcement, |_| {
                config
            })
            .await?;
        Ok(GroupMembership { candidate })
    }

    /// All members, in the order in which they joined, by one linearizable read. The roster has no
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

    /// Looks on: the current members first, then every change. Needs no lease, and only the permission to read. While
    /// etcd cannot be reached, the stream waits.
    ///
    /// # Errors
    ///
    /// `Closed`: the session was closed. What etcd refuses arrives as an item of the stream.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as is waiting for the stream's next item.
    pub async fn observe(&self) -> Result<Observer> {
        let (handle, prefix) = (self.handle.clone(), self.prefix_bytes());
        Ok(Observer::start(handle, prefix, Reach::Children)
            .await?
            .unled())
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

/// A node that is announced in a [`Group`].
///
/// Dropping it leaves, in the background.
#[must_use = "dropping a membership leaves the group"]
pub struct GroupMembership {
    candidate: Candidate,
}

impl GroupMembership {
    /// Whether its key stands: [`Status::Present`], or [`Status::Joining`] while it is put anew, or [`Status::Ended`]; never
    /// any other. Asks nobody.
    ///
    /// A session that cannot reach etcd does not know whether the key still stands: until
    /// [`Session::state`] is live again, `Present` says what was so when it last heard of it.
    pub fn status(&self) -> Status {
        self.candidate.status()
    }

    /// The same as a channel: the current status at once (`changed()` returns for it), then every change, the latest
    /// winning.
    pub fn subscribe(&self) -> watch::Receiver<Status> {
        self.candidate.subscribe()
    }

    /// Replaces all that this member announces, now and whenever its key is put anew. At most 32 KiB.
    ///
    /// # Errors
    ///
    /// As [`Candidate::proclaim`].
    ///
    /// # Cancellation safety
    ///
    /// Dropped midway, etcd may or may not have it; the next key will.
    pub async fn proclaim(&self, announcement: impl Into<Announcement>) -> Result<()> {
        self.candidate.proclaim(announcement).await
    }

    /// Leaves the group; returns when etcd confirmed that the key is gone.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is retried in the background,
    /// and this call may be repeated.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: leaving goes on in the background.
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
