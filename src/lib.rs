//! Leader election on etcd in which the longest-running node wins: of all nodes that stand in an election, the one
//! that has stood longest leads, and **at most one acts as leader at a time**. A node may act while
//! [`Term::is_valid`] says so, which it stops to say before etcd can give the leadership to anybody else, provided
//! that (1) this machine's clock and etcd's run at rates that differ by no more than
//! [`clock_drift_ppm`](SessionOptions::clock_drift_ppm), (2) the clock counts every pause of the machine
//! ([Clock](#clock)), and (3) nobody but the leader's own session deletes or overwrites the leader's key or revokes
//! its lease. Writes that carry the [fencing token](#fencing) are refused once they are stale, whether or not these
//! three hold.
//!
//! **Not guaranteed**: that a key lives as long as its lease was granted for. An operator can revoke or delete it,
//! and in rare cases etcd does so itself (a member that led, was stopped and resumes may revoke leases that were
//! renewed meanwhile). The old leader learns of it from its watch, usually within milliseconds, at the latest at its
//! local deadline; until then two nodes believe. Nor is anything guaranteed about what other programs believe that
//! stand in the same election, about a process that is cloned or restored together with its memory, about a pause
//! *between* a check and the act it allowed, or about tokens across an etcd that was restored from a backup. Fencing
//! covers the early deletion and the pause; two copies of one process, however, carry the same token.
//!
//! # Quick start
//!
//! Do some work for as long as this node leads, and stand again whenever the leadership was lost:
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), eldest::BoxError> {
//! # async fn one_piece_of_work(_: i64) -> std::io::Result<()> {
//! #     Ok(tokio::time::sleep(std::time::Duration::from_millis(5)).await)
//! # }
//! # let etcd = eldest_testing::Etcd::start().await?;
//! # let endpoints = [etcd.endpoint()];
//! use eldest::{BoxError, CancellationToken, Session, SessionOptions};
//!
//! // `endpoints` are all members, such as ["http://10.0.0.1:2379", "http://10.0.0.2:2379"].
//! let session = Session::connect(endpoints, SessionOptions::new("node-a")).await?;
//! let election = session.election("billing/scheduler")?;
//!
//! let shutdown = CancellationToken::new(); // to be cancelled on SIGTERM
//! # let stop = &shutdown;
//! election
//!     .run(shutdown.clone(), |leadership| async move {
//!         let lost = leadership.lost();
//!         while !lost.is_cancelled() {
//!             one_piece_of_work(leadership.fencing_token()).await?;
//! #           stop.cancel();
//!         }
//!         Ok::<_, BoxError>(())
//!     })
//!     .await?;
//! session.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The same step by step, for those who want to decide themselves what happens between the terms:
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), eldest::BoxError> {
//! # use eldest::{Session, SessionOptions};
//! # let etcd = eldest_testing::Etcd::start().await?;
//! # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
//! # let election = session.election("billing/scheduler")?;
//! let mut candidate = election.campaign().await?; // its key stands, and is kept alive while it waits
//! let leadership = candidate.elected().await?; // it leads
//! while leadership.is_valid() {
//!     // ... one piece of work that takes less than the grace period ...
//! #   break;
//! }
//! leadership.resign().await?; // the next eldest leads at once
//! # Ok(())
//! # }
//! ```
//!
//! Whoever goes step by step decides what [`Election::run`] decides otherwise:
//!
//! * **Await [`Candidate::elected`] for as long as the candidate stands.** A candidate that wins and is not awaited leads:
//!   nobody else can, and nobody acts. The log warns of it after the grace period.
//! * **After a term was lost**, stop the work, drop the [`Leadership`], and await [`Candidate::elected`] again; the candidate
//!   stands by itself. [`Leadership::resign`] and [`Session::close`] are no errors after a loss. They are
//!   `Unavailable` if etcd does not confirm in time that nothing is left, for example while it cannot be reached; a
//!   program that ends may ignore that, for the keys expire with their lease.
//! * **Campaigning again right after a drop** is permitted: the new candidate joins at the back when the old key is gone. While
//!   a `Leadership`, or a task of [`Leadership::spawn`], lives on without its candidate, it is
//!   [`AlreadyCampaigning`](ErrorKind::AlreadyCampaigning).
//! * **During the grace period** the status is [`Status::Ending`] and [`Election::is_leader`] is `false`, so nothing new is
//!   begun; [`Term::is_valid`] goes on to be `true` where the table [below](#ending-a-term) says so, for work that winds up.
//!
//! # How it works
//!
//! Every candidate has a key `<namespace>/<election>/<lease id in hex>`, bound to the one lease of its [`Session`];
//! its create revision is its seniority. A watch shows every candidate the same queue, and the one whose key is the
//! oldest leads; when an older key goes, no further request is needed to know. How long a node believes in its lease
//! counts from the moment *before* a renewal was sent, and a renewal counts only once a linearizable read that was
//! begun after it has shown that the member which acknowledged it was etcd's leader still.
//!
//! The keys are those of etcd's own election recipe. Go services with `clientv3/concurrency`, `etcdctl elect` and
//! the v3election RPC can stand in the same election under the name `<namespace>/<election>`, or just `<election>`
//! with an empty [`namespace`](SessionOptions::namespace). An election that exists already, under whatever prefix, is
//! [`Session::election_at`].
//!
//! # Ending a term
//!
//! A [term](Term) ends in one order, whatever ends it: its token [`Term::lost`] is cancelled and its deadline
//! frozen, so that no later renewal extends it; its work is awaited; work that goes on is dropped at the frozen
//! deadline; then the key is deleted, and the deletion is retried until etcd confirms it. [`Election::run`] does all
//! this; [`Leadership::spawn`] does it for tasks of those who go step by step.
//!
//! | what ends it | the term stays valid | work is dropped |
//! |---|---|---|
//! | [no renewal was verified in time](LostReason::LeaseExpiring) | for the [grace period](SessionOptions::grace) | at the end of validity |
//! | its work [stalled](LostReason::Stalled), or its node is unhealthy ([`Runner`]) | for the grace period, or until the last deadline if that is earlier | at the end of validity |
//! | [shutdown](LostReason::Shutdown), [the session closes](LostReason::SessionClosed), [the runtime is gone](LostReason::RuntimeGone) | until the last deadline, less than a TTL away | at the end of validity |
//! | the [partition goes to another member](LostReason::Reassigned), or its member leaves | for the grace period, or until the last deadline if that is earlier | at the end of validity |
//! | its [key](LostReason::KeyDeleted) or [lease](LostReason::LeaseLost) is gone, it is [overwritten](LostReason::KeyOverwritten), or [etcd is another](LostReason::StoreChanged) | no longer | after the grace period, or at the last deadline if that is earlier |
//! | the leader [resigns](Leadership::resign), [steps down](Leadership::step_down) or drops its [`Leadership`] | no longer | as in the line above (tasks of [`Leadership::spawn`]) |
//!
//! After the reasons in the first, the second and the fifth line, and after stepping down, the node stands again by
//! itself, at the back of the queue; after a stall not before its work has ended and its health check says `Ok`. Work
//! that blocks a thread cannot be dropped: only [`Term::is_valid`] and fencing hold it back, or the end of its process
//! ([`OnOverrun::Abort`]).
//!
//! # Following, and leading in good health
//!
//! [`Election::runner`] is `run` with options: [work while following](Runner::follow), which is told who leads and ends
//! before the leader's work begins; a [stall timeout](Runner::stall_timeout) and a [health check](Runner::health_check),
//! without whose signs of life a leader gives way although its lease is healthy; and what becomes of work that
//! [outlives its term](Runner::on_overrun). `docs/rolling-restart.md` in the repository tells how to restart all nodes
//! with one change of the leader.
//!
//! # Fencing
//!
//! A check can be followed by a pause of any length before the write that it allowed. What must never happen twice
//! is therefore guarded where it happens, by the [fencing token](Term::fencing_token): the create revision of the
//! leader's key, which is larger in every later term of the election.
//!
//! * What is written to the same etcd: [`Term::txn`] applies operations only if this term's key still stands, and
//!   [`Term::guard`] is the same condition for transactions of one's own.
//! * Any other resource must keep the highest token it has seen and refuse lower ones. A new leader writes its token
//!   there first, and reads the state only then.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), eldest::BoxError> {
//! # use eldest::{Session, SessionOptions};
//! # let etcd = eldest_testing::Etcd::start().await?;
//! # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
//! # let mut candidate = session.election("billing/scheduler")?.campaign().await?;
//! # let leadership = candidate.elected().await?;
//! use eldest::{ErrorKind, Op};
//!
//! match leadership.txn([Op::put("billing/invoices/next", "4711")]).await {
//!     Ok(_applied) => {}
//!     Err(error) => match error.kind() {
//!         ErrorKind::LeadershipLost | ErrorKind::GuardLost => return Ok(()), // not applied: stop the work
//!         ErrorKind::Ambiguous => { /* perhaps applied: read back before writing again */ }
//!         _ => return Err(error.into()), // not applied
//!     },
//! }
//! # assert_eq!(etcd.client().await.get("billing/invoices/next", None).await?.kvs()[0].value(), b"4711");
//! # Ok(())
//! # }
//! ```
//!
//! Tokens grow within one etcd cluster. If its data is restored from a backup, revisions fall back, and tokens are
//! given out again. A session that lives on notices a lower revision or raft term than it knew, or another cluster id:
//! it ends its terms ([`LostReason::StoreChanged`]), logs an error and stands anew. A session that starts afterwards
//! cannot know. Restore with `etcdutl snapshot restore --bump-revision N --mark-compacted` and an N larger than what
//! was written since the backup: then tokens go on growing. Or let outside resources compare `(epoch, token)` with an
//! epoch that is raised by hand after a restore.
//!
//! After a restore with a bump, only the raft term tells: a restored member begins again at a low one. It does not
//! tell if the old cluster was as young. Then terms go on if their keys came back, and a leader that finds an older
//! key before its own steps aside. A key without a lease that comes back belongs to no session: it blocks its election,
//! and [`Roster::blocker`] shows it, until somebody deletes it.
//!
//! # Observing
//!
//! [`Election::leader`] and [`Election::roster`] ask etcd once; [`Election::observe`] is the stream of all changes,
//! the current state first, times without a leader included. Onlookers hold no lease and need only the permission to read.
//! What candidates [announce](SessionOptions::announcement) tells the others how to reach the leader:
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), eldest::BoxError> {
//! # use eldest::{Session, SessionOptions};
//! # let etcd = eldest_testing::Etcd::start().await?;
//! # let endpoints = [etcd.endpoint()];
//! use eldest::Announcement;
//! use futures::StreamExt;
//!
//! let me = Announcement::default().with_address("10.0.0.1:8080");
//! let session = Session::connect(endpoints, SessionOptions::new("node-a").announcement(me)).await?;
//! let election = session.election("billing/scheduler")?;
//! let _candidate = election.campaign().await?;
//!
//! let mut changes = election.observe().await?;
//! while let Some(roster) = changes.next().await {
//!     match roster?.leader() {
//!         Some(leader) => {
//!             println!("{} leads at {:?}", leader.identity(), leader.announcement().address());
//! #           assert_eq!(leader.announcement().address(), Some("10.0.0.1:8080"));
//! #           break;
//!         }
//!         None => println!("nobody leads"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A node's own state comes from [`Candidate::status`] and [`Session::state`]. Everything of importance is also
//! logged with `tracing`, under the targets `eldest::session`, `eldest::election` and `eldest::etcd`.
//!
//! # Locks and semaphores
//!
//! [`Session::lock`] and [`Session::semaphore`] are the same queue with short holders: whoever asked first holds first,
//! and of a semaphore as many hold as it has permits. A [`LockGuard`] or [`Permit`] is a term: it has the deadline, the
//! token [`lost`](Term::lost), the checks and the fencing of a leader's, and ends in the same order. It is not joined
//! again by itself after it was lost.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), eldest::BoxError> {
//! # use eldest::{Session, SessionOptions};
//! # let etcd = eldest_testing::Etcd::start().await?;
//! # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
//! let lock = session.lock("billing/invoices")?;
//! if let Some(guard) = lock.try_acquire().await? {
//!     // ... short work, as long as `guard.is_valid()` ...
//!     guard.release().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The keys of a lock are those of etcd's own lock recipe, `<namespace>/<name>/<lease id in hex>`, and so those of an
//! election of the same name: give them different ones. Semaphores have keys apart, `<namespace>/~semaphore/...`.
//!
//! # Shared partitions
//!
//! [`Session::partitions`] splits work into a number of partitions, each with a leader of its own, and spreads them over
//! all sessions that [join](Partitions::join): loads differ by one at most, and a member that joins or leaves moves only
//! what balance requires. A [`Partition`] is a term as any other. [`Partitions::run`] does work for each that is owned;
//! [`Partitions::map`] and [`Partitions::observe`] tell which is with whom and how to reach it, and
//! [`Partitions::partition_for`] which one a key belongs to. Their keys are `<namespace>/~partitions/...`.
//!
//! # Groups
//!
//! [`Session::group`] announces nodes that lead nothing and wait for nothing: a service's instances, for example, so that
//! others find them. [`Group::join`] announces this one, for as long as its [`GroupMembership`] lives and its session holds
//! a lease; [`Group::members`] and [`Group::observe`] tell who is there. Their keys are
//! `<namespace>/~members/<name>/<lease id in hex>`.
//!
//! # Errors
//!
//! There is one [`Error`]; its [kind](ErrorKind) says what to do next. Losing a leadership is no error of
//! [`Election::run`], and being out of reach is none of [`Election::campaign`]: both go on.
//!
//! | kind | what to do |
//! |---|---|
//! | [`InvalidInput`](ErrorKind::InvalidInput) | correct the option, name or value that the message names |
//! | [`Unavailable`](ErrorKind::Unavailable) | try again; what was asked to be taken away is being taken away in the background |
//! | [`PermissionDenied`](ErrorKind::PermissionDenied) | grant the role `readwrite` on the namespace, `read` for onlookers |
//! | [`Unauthenticated`](ErrorKind::Unauthenticated) | correct user and password |
//! | [`Overloaded`](ErrorKind::Overloaded) | wait; see to etcd's alarms, such as a full database |
//! | [`Rejected`](ErrorKind::Rejected) | change the request: etcd will never accept it |
//! | [`Proxied`](ErrorKind::Proxied) | name the members of etcd as endpoints, not etcd's gRPC proxy |
//! | [`CertificateRefused`](ErrorKind::CertificateRefused) | correct the authorities, the certificate's names, or our own certificate; the source says which |
//! | [`CapacityMismatch`](ErrorKind::CapacityMismatch) | use the capacity that the message names, or wait until none of those who use it holds or awaits a permit |
//! | [`CountMismatch`](ErrorKind::CountMismatch) | use the count that the message names, or wait until none of its members is there |
//! | [`AlreadyCampaigning`](ErrorKind::AlreadyCampaigning) | use the candidate that this session has, or another session |
//! | [`LeadershipLost`](ErrorKind::LeadershipLost) | stop the work; nothing was sent |
//! | [`GuardLost`](ErrorKind::GuardLost) | stop the work; nothing was applied |
//! | [`Ambiguous`](ErrorKind::Ambiguous) | read back: the transaction may have been applied or not |
//! | [`Ended`](ErrorKind::Ended) | campaign again to stand anew |
//! | [`Closed`](ErrorKind::Closed) | connect a new session |
//! | [`Work`](ErrorKind::Work) | look at the source: it is the error of your own work |
//!
//! # Cancellation safety
//!
//! Every future of this crate may be dropped at any time without a key, a lease or a task being left behind.
//! Dropping [`Lock::acquire`] gives up the place in the queue and takes the key away.
//! Dropping [`Candidate::elected`] loses nothing: what was won meanwhile is returned by the next call. Dropping
//! [`Election::run`] drops the work and releases the key. The exceptions are writes: after [`Term::txn`] or a
//! `proclaim` was dropped midway, etcd may or may not have applied it.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `tls` | `https` endpoints: `tls-ring` and `tls-native-roots`. `SessionOptions::tls` names authorities and certificates of one's own |
//! | `tls-ring`, `tls-aws-lc` | `https` endpoints, with the cryptography of ring or of AWS. With both, ring's is used, unless the program has installed a default for rustls |
//! | `tls-native-roots`, `tls-webpki-roots` | whom to trust where no authorities are named: those of the system, or Mozilla's, which are built in. With both, all of them |
//! | `etcd-client` | conversions of [`Guard`], [`Condition`] and [`Op`] into types of the version of `etcd-client` that this crate uses; no other feature shows types of it |
//! | `serde` | `Serialize` for [`Status`], [`SessionState`], [`Roster`], [`Member`], reasons and [`QueueKind`]; `Deserialize` for [`SessionOptions`], [`Announcement`], [`WatchScope`], [`OnOverrun`], [`Status`] and reasons |
//! | `metrics` | counts and measures, through the facade of the crate `metrics`; the module `metrics` |
//!
//! None is on by default. Beside this crate are `eldest-http` (an axum router that tells others who leads, and a layer that
//! lets requests through while one leads), `eldest-cli` (the command `eldest`) and `eldest-testing` (a real etcd and faults for
//! your tests). Building needs `protoc` and the include files of protobuf, because `etcd-client` does:
//! Debian's packages `protobuf-compiler` and `libprotobuf-dev`, or the variables `PROTOC` and `PROTOC_INCLUDE`.
//!
//! # Clock
//!
//! Deadlines are kept by one clock that is never set: on Linux and Android `CLOCK_BOOTTIME`, which goes on during
//! suspend. Elsewhere it is the standard library's `Instant`, which on some systems stands still while the machine
//! sleeps; there, as on a virtual machine that is frozen and resumed, a node that wakes up may believe in a term
//! that is over, and only fencing holds it back. The wall clock decides nothing. It is only written into structured
//! announcements, for people to read. Only the *rate* of the clocks matters; 1000 ppm, the default bound, is twice
//! what NTP slews by.
//!
//! A thread of its own, one per process, cancels the tokens of terms that run out, even if every worker of the tokio
//! runtime is blocked.
//!
//! # etcd versions
//!
//! Every test runs against etcd 3.7, those that depend on etcd's version against 3.5 and 3.6 as well, and a smoke test
//! against the last 3.4 and against 3.4.23, which Debian 12 ships. Use the newest patch release: releases before 3.4.38,
//! 3.5.23 and 3.6.5 may acknowledge the renewal of a lease that is gone, and releases before 3.4.42, 3.5.28 and 3.6.9
//! may answer a linearizable read with old state after a pause. A renewal is verified with every version alike, so the
//! first alone cannot make two leaders; the second weakens the very read that verifies.
#![cfg_attr(docsrs, feature(doc_cfg))]
// What users match and build may grow without breaking them; hidden modules say where they are exempt.
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod driver;
mod election;
mod error;
mod etcd;
#[cfg(feature = "unstable-fuzz")]
#[doc(hidden)]
pub mod fuzzing;
mod group;
#[doc(hidden)]
pub mod internal;
mod lock;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
mod metrics;
mod observe;
#[doc(hidden)]
pub mod operator;
mod partitions;
mod runtime;
mod session;
mod state;
mod util;

pub use eldest_core::candidate::WatchScope;
pub use eldest_core::reason::{EndReason, LostReason};
pub use election::{
    Candidate, Election, Following, Heartbeats, Leadership, NoCheck, NoFollower, OnOverrun,
    RunHandle, Runner, Shutdown,
};
pub use error::{BoxError, Error, ErrorKind, Result};
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
pub use etcd::TlsOptions;
pub use etcd::{Comparison, Condition, Credentials, Guard, KeyValue, Op, OpResult, TxnOutcome};
pub use group::{Group, GroupMembership};
pub use lock::{Lock, LockGuard, Permit, Semaphore};
pub use observe::{
    LeaderChange, LeaderChanges, LeaseTime, Observer, Overview, PartitionMap, PartitionMapObserver,
    PartitionOwner, Queue, QueueKind,
};
pub use partitions::{Partition, PartitionMembership, Partitions};
pub use session::{Session, SessionOptions};
pub use state::{
    Announcement, AsOf, Deadline, LeaseView, Member, Roster, SessionState, Status, Term,
};
pub use tokio_util::sync::CancellationToken;

/// The seam through which the unchanged library runs in simulated time. Not covered by semver.
#[cfg(feature = "unstable-sim")]
#[doc(hidden)]
pub mod sim {
    pub use crate::runtime::{Env, Scripted, Watched};
    pub use eldest_core::time::Time;
}

#[cfg(doctest)]
pub mod must_compile;

/// Compiles the programs of README and of the guide as doctests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../docs/followers.md")]
    mod followers {}
    #[doc = include_str!("../docs/groups.md")]
    mod groups {}
    #[doc = include_str!("../docs/http.md")]
    mod http {}
    #[doc = include_str!("../docs/locks.md")]
    mod locks {}
    #[doc = include_str!("../docs/partitions.md")]
    mod partitions {}
    #[doc = include_str!("../docs/rolling-restart.md")]
    mod rolling_restart {}
    #[doc = include_str!("../docs/run.md")]
    mod run {}
    #[doc = include_str!("../docs/start.md")]
    mod start {}
    #[doc = include_str!("../docs/testing.md")]
    mod testing {}
}
