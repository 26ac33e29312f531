//! Leader election on [etcd](https://etcd.io): of all candidates, the one that has waited longest leads.
//!
//! Each candidate has a key in etcd, and the candidate with the oldest key leads. [`Election::run`] runs your work
//! while this node leads, ends the work in time when the leadership is lost, and joins the queue again. [Locks](Lock),
//! [semaphores](Semaphore), [partitions](Partitions) and [groups](Group) share the lease of one [`Session`].
//!
//! # Guarantee
//!
//! **At most one node acts as leader of an election at a time.** A node acts as leader while [`Term::is_valid`] returns
//! `true`. [`Term::is_valid`] returns `false` before etcd can give the leadership to another node, provided that:
//!
//! 1. the clocks of this machine and of etcd differ in rate by at most
//!    [`clock_drift_ppm`](SessionOptions::clock_drift_ppm),
//! 2. this machine's clock counts every pause of the machine ([Clock](#clock)), and
//! 3. only the leader's own session, or a [guard](SessionOptions::guard) after the end of its process, deletes or
//!    overwrites the leader's key, or revokes its lease.
//!
//! etcd refuses stale writes that carry the [fencing token](Term::fencing_token), even if these conditions do not hold.
//!
//! # Limits
//!
//! * **Pauses.** A process can be paused between a check and the write that follows. Only a fenced write is safe then.
//! * **Removed keys.** An operator can delete the leader's key or revoke its lease. Rarely, etcd itself revokes a lease
//!   early, after its own leader was stopped and resumed. The old leader learns of it from its watch, usually within
//!   milliseconds, at the latest at its local deadline. Until then, two nodes act as leader. Fenced writes stay
//!   safe.
//! * **Copies.** If a process is cloned or restored with its memory, both copies carry the same token.
//! * **Restored backups.** A restored etcd issues old fencing tokens again, unless the restore bumps the revision.
//! * **Other programs** that are candidates in the same election follow their own rules.
//!
//! [The guide][guarantees] lists all guarantees and limits.
//!
//! # Quick start
//!
//! Run work while this node leads, and campaign again after each lost term:
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), eldest::BoxError> {
//! # async fn one_piece_of_work(_: i64) -> std::io::Result<()> {
//! #     Ok(tokio::time::sleep(std::time::Duration::from_millis(5)).await)
//! # }
//! # let etcd = eldest_testing::Etcd::start().await?;
//! # let endpoints = [etcd.endpoint()];
//! # use eldest::CancellationToken;
//! use eldest::{BoxError, Session, SessionOptions};
//!
//! // `endpoints` are all members, such as ["http://10.0.0.1:2379", "http://10.0.0.2:2379"].
//! let session = Session::connect(endpoints, SessionOptions::new("node-a")).await?;
//! let election = session.election("billing/scheduler")?;
//!
//! # let shutdown = CancellationToken::new();
//! # let stop = &shutdown;
//! # #[cfg(any())] // this program stops itself
//! let shutdown = eldest::shutdown_signal(); // SIGINT or SIGTERM
//! # let shutdown = shutdown.clone();
//! election
//!     .run(shutdown, |leadership| async move {
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
//! The same step by step, for full control between the terms:
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), eldest::BoxError> {
//! # use eldest::{Session, SessionOptions};
//! # let etcd = eldest_testing::Etcd::start().await?;
//! # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
//! # let election = session.election("billing/scheduler")?;
//! let mut candidate = election.campaign().await?; // joins the queue; the session keeps its key alive
//! let leadership = candidate.elected().await?; // waits until this node leads
//! while leadership.is_valid() && !leadership.lost().is_cancelled() {
//!     // ... one piece of work that takes less than the grace period ...
//! #   break;
//! }
//! leadership.resign().await?; // the next eldest leads at once
//! # Ok(())
//! # }
//! ```
//!
//! A program that controls each step takes over these duties of [`Election::run`]:
//!
//! * **Await [`Candidate::elected`] for as long as the candidate exists.** If it wins while no task awaits it, this
//!   node leads but does no work. The log warns of this after the [grace period](SessionOptions::grace).
//! * **After a lost term**, stop the work, drop the [`Leadership`], and await [`Candidate::elected`] again. The
//!   candidate rejoins the queue without a further call.
//! * **To leave**, call [`Leadership::resign`] or [`Session::close`], even after a loss. They return
//!   [`Unavailable`](ErrorKind::Unavailable) if etcd does not confirm in time that no key is left. A program that exits
//!   may ignore this error: its keys expire with their lease.
//!
//! [How a term ends](Term#how-a-term-ends) says how long work may continue after each kind of loss.
//!
//! # What to use
//!
//! | to | use |
//! |---|---|
//! | connect, and set TTL, timeouts, credentials and TLS | [`Session`], [`SessionOptions`] |
//! | run work while this node leads | [`Election::run`], [`Election::spawn`] |
//! | run work on followers, or end a stuck leader | [`Election::runner`], [`Runner`] |
//! | run jobs at fixed times | [`Election::every`] |
//! | control each step | [`Election::campaign`], [`Candidate`], [`Leadership`] |
//! | ask whether this node may act | [`Term::is_valid`], [`Term::lost`], [`Election::is_leader`] |
//! | refuse writes of an old leader | [`Term::txn`], [`Term::fence`], [`Term::fencing_token`] |
//! | find the leader and the candidates | [`Election::leader`], [`Election::roster`], [`Election::observe`], [`Session::overview`] |
//! | announce how others reach this node | [`Announcement`], [`Leadership::proclaim`] |
//! | exclude others from a short step | [`Session::lock`], [`Session::semaphore`] |
//! | spread work over many nodes | [`Session::partitions`] |
//! | list nodes that need no leader | [`Session::group`] |
//! | decide after an error | [`Error::kind`], [`ErrorKind`] |
//! | take over from a crash or silence | [`SessionOptions::guard`], [`challenges`](SessionOptions::challenges) |
//! | see this node's state | [`Session::state`], [`Election::status`] |
//!
//! A dropped `campaign`, `acquire` or `run` leaves no key behind. The outcome of a dropped write, such as
//! [`Term::txn`], is unknown.
//!
//! It logs with `tracing`: [log lines][logging].
//!
//! # Features
//!
//! No feature is on by default. Building needs `protoc` and the include files of protobuf ([how to get them][start]).
//!
//! | feature | adds |
//! |---|---|
//! | `tls` | `https` endpoints: `tls-ring` and `tls-native-roots`; `SessionOptions::tls` names your own certificates |
//! | `tls-ring`, `tls-aws-lc` | `https` endpoints, with the cryptography of ring or of AWS. With both, ring is used unless rustls has another default |
//! | `tls-native-roots`, `tls-webpki-roots` | the authorities trusted by default: the system's, or Mozilla's built-in ones. With both, all of them |
//! | `srv` | [`Endpoint`]s from SRV records |
//! | `etcd-client` | conversions of [`Fence`], [`Condition`] and [`Op`] into types of `etcd-client`, in the version this crate uses |
//! | `cron` | [`Schedule`]s from cron expressions |
//! | `serde` | `Serialize` for [`SessionState`], [`LeaseView`], [`Roster`], [`Member`], [`QueueKind`]; `Deserialize` for [`SessionOptions`]; both for [`Status`], [`Version`], [`Announcement`], [`WatchScope`], [`OnOverrun`], [`OnError`] and reasons |
//! | `metrics` | [metrics] through the facade of the crate `metrics`, and the module `metrics` |
//!
//! `eldest-route` sends requests to the leader, `eldest-http` serves the state over HTTP, `eldest-cli` is the command,
//! `eldest-testing` tests failover.
//!
//! # Clock
//!
//! Deadlines use one clock that cannot be set. On Linux and Android it is `CLOCK_BOOTTIME`, which counts suspended
//! time. Elsewhere it is the standard library's `Instant`, which may stand still while the machine sleeps. There, and
//! on a virtual machine that is frozen from outside, only fencing stops a leader that wakes up after its term.
//!
//! Only the *rate* of the clocks matters, not the time of day. The default bound of 1000 ppm is twice NTP's slew rate.
//!
//! One thread per process cancels the tokens of expiring terms, even if every worker of the tokio runtime is blocked.
//!
//! # The guide
//!
//! | you want to | read |
//! |---|---|
//! | start, or decide | [start here][start], [guarantees and limits][guarantees], [comparison][comparison] |
//! | use it | [a leader's task][run], [finding the leader][followers], [fencing][fencing], [locks][locks], [partitions][partitions], [groups][groups], [schedules][schedules] |
//! | test your failover | [testing][testing] |
//! | run it | [choosing a TTL][ttl], [permissions][permissions], [operating][operations], [supported versions][versions] |
//! | share an election with Go or `etcdctl` | [interoperability][interop] |
//!
//! [comparison]: https://docs.rs/crate/eldest/latest/source/docs/comparison.md
//! [fencing]: https://docs.rs/crate/eldest/latest/source/docs/fencing.md
//! [followers]: https://docs.rs/crate/eldest/latest/source/docs/route.md
//! [groups]: https://docs.rs/crate/eldest/latest/source/docs/groups.md
//! [guarantees]: https://docs.rs/crate/eldest/latest/source/docs/guarantees.md
//! [interop]: https://docs.rs/crate/eldest/latest/source/docs/interop.md
//! [locks]: https://docs.rs/crate/eldest/latest/source/docs/locks.md
//! [logging]: https://docs.rs/crate/eldest/latest/source/docs/logging.md
//! [metrics]: https://docs.rs/crate/eldest/latest/source/docs/metrics.md
//! [operations]: https://docs.rs/crate/eldest/latest/source/docs/operations.md
//! [partitions]: https://docs.rs/crate/eldest/latest/source/docs/partitions.md
//! [permissions]: https://docs.rs/crate/eldest/latest/source/docs/security.md
//! [run]: https://docs.rs/crate/eldest/latest/source/docs/run.md
//! [schedules]: https://docs.rs/crate/eldest/latest/source/docs/schedules.md
//! [start]: https://docs.rs/crate/eldest/latest/source/docs/start.md
//! [testing]: https://docs.rs/crate/eldest/latest/source/docs/testing.md
//! [ttl]: https://docs.rs/crate/eldest/latest/source/docs/ttl.md
//! [versions]: https://docs.rs/crate/eldest/latest/source/docs/versions.md
#![cfg_attr(docsrs, feature(doc_cfg))]
// Types that users match and build may grow without breaking them; hidden modules state their exemptions.
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

#[cfg(test)]
#[path = "../tests/capture/mod.rs"]
mod capture;
mod driver;
mod election;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod group;
pub mod guard;
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
mod schedule;
mod session;
mod state;
mod util;

pub use eldest_core::candidate::WatchScope;
pub use eldest_core::reason::{EndReason, LostReason};
pub use eldest_core::version::{InvalidVersion, Version};
pub use eldest_etcd::{
    Comparison, Condition, Credentials, Endpoint, EndpointReason, EndpointStatus, Fence, KeyValue,
    Op, OpResult, TxnOutcome,
};
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
pub use eldest_etcd::{InvalidTls, TlsOptions};
pub use election::{
    Candidate, Checkpoint, Election, Following, Heartbeats, Leadership, OnError, OnOverrun,
    RunHandle, Runner, Shutdown, StepDown, Work, shutdown_signal,
};
pub use error::{BoxError, Error, ErrorKind, Result};
pub use group::{Group, GroupMembership};
pub use lock::{Lock, LockGuard, LockSet, LockSetGuard, Permit, Semaphore};
pub use observe::{
    KeptShare, LeaderChange, LeaderChanges, LeaseTime, Observer, Overview, PartitionMap,
    PartitionMapObserver, PartitionOwner, Queue, QueueKind,
};
pub use partitions::{
    ComingPartition, Partition, PartitionMembership, PartitionRunner, Partitions,
};
pub use schedule::{CatchUp, Delivery, Due, Every, Schedule};
pub use session::{Challenges, Session, SessionOptions};
pub use state::{
    Announcement, AsOf, Deadline, Evacuate, Evacuation, LeaseView, Member, Roster, SessionState,
    Status, Term, VersionMark,
};
pub use tokio_util::sync::CancellationToken;

/// Lets the unchanged library run in simulated time. Not covered by semver.
#[doc(hidden)]
pub mod sim {
    pub use eldest_core::time::Time;
    pub use eldest_etcd::runtime::{Env, Scripted, Service, Watched};
}

#[cfg(doctest)]
pub mod must_compile;

/// Compiles the programs of README and of the guide as doctests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/challenges.md")]
    mod challenges {}
    #[doc = include_str!("../docs/data-centres.md")]
    mod data_centres {}
    #[doc = include_str!("../docs/do-i-need-a-leader.md")]
    mod do_i_need_a_leader {}
    #[doc = include_str!("../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../docs/groups.md")]
    mod groups {}
    #[doc = include_str!("../docs/guard.md")]
    mod guard {}
    #[doc = include_str!("../docs/http.md")]
    mod http {}
    #[doc = include_str!("../docs/locks.md")]
    mod locks {}
    #[doc = include_str!("../docs/migrate.md")]
    mod migrate {}
    #[doc = include_str!("../docs/partitions.md")]
    mod partitions {}
    #[doc = include_str!("../docs/rolling-restart.md")]
    mod rolling_restart {}
    #[doc = include_str!("../docs/rollouts.md")]
    mod rollouts {}
    #[doc = include_str!("../docs/route.md")]
    mod route {}
    #[doc = include_str!("../docs/run.md")]
    mod run {}
    #[doc = include_str!("../docs/schedules.md")]
    mod schedules {}
    #[doc = include_str!("../docs/serving.md")]
    mod serving {}
    #[doc = include_str!("../docs/warm.md")]
    mod warm {}
    #[doc = include_str!("../docs/start.md")]
    mod start {}
    #[doc = include_str!("../docs/state.md")]
    mod state {}
    #[doc = include_str!("../docs/step-by-step.md")]
    mod step_by_step {}
    #[doc = include_str!("../docs/testing.md")]
    mod testing {}
}
