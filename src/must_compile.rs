//! Programs that must compile, and programs that must not, as documentation tests, because `trybuild` would build every
//! dependency a second time. The first program of each pair compiles, so that the second fails only because of its one
//! difference.

/// A run does not borrow its handle and is `Send`: a task may own it. The run stops by a token, or by any future with
/// any output, and by nothing else.
///
/// ```no_run
/// # use eldest::{BoxError, CancellationToken, Election, Leadership};
/// fn start(election: &Election, token: CancellationToken) {
///     let work = |leadership: Leadership| async move {
///         leadership.lost().cancelled().await;
///         Ok::<_, BoxError>(())
///     };
///     tokio::spawn(election.run(token.clone(), work));
///     tokio::spawn(election.run(eldest::shutdown_signal(), work));
///     tokio::spawn(election.run(tokio::signal::ctrl_c(), work));
///     tokio::spawn(election.runner().run(token, work));
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use eldest::{BoxError, Election, Leadership};
/// fn start(election: &Election) {
///     let work = |leadership: Leadership| async move {
///         leadership.lost().cancelled().await;
///         Ok::<_, BoxError>(())
///     };
///     tokio::spawn(election.run("SIGTERM", work));
/// }
/// ```
pub struct Runs;

/// A runner's follower and health check may borrow, and a closure of either kind learns its argument's type.
///
/// ```no_run
/// # use eldest::{BoxError, Election, Following, Result};
/// async fn campaign(election: &Election, database: &str) -> Result<Option<()>> {
///     let check = || async move { if database.is_empty() { Err("gone") } else { Ok(()) } };
///     let (every, limit) = (std::time::Duration::from_secs(1), std::time::Duration::from_secs(5));
///     let runner = election.runner().health_check(every, limit, check);
///     let runner = runner.follow(|following| async move {
///         println!("{database} is led by {:?}", following.leader());
///         Ok::<_, BoxError>(())
///     });
///     runner.run(eldest::shutdown_signal(), async |leadership| {
///         leadership.lost().cancelled().await;
///         Ok::<_, BoxError>(())
///     }).await
/// }
/// ```
pub struct Borrows;

/// Work that changes what it captured needs `run_mut`.
///
/// ```no_run
/// # use eldest::{BoxError, Election, Result};
/// async fn campaign(election: &Election) -> Result<Option<()>> {
///     let mut terms = 0;
///     election.run_mut(eldest::shutdown_signal(), async |leadership| {
///         terms += 1;
///         leadership.lost().cancelled().await;
///         Ok::<_, BoxError>(())
///     }).await
/// }
/// ```
///
/// The compiler's message names `run_mut`: `tests/compiler.rs` checks this.
///
/// ```compile_fail,E0277
/// # use eldest::{BoxError, Election, Result};
/// async fn campaign(election: &Election) -> Result<Option<()>> {
///     let mut terms = 0;
///     election.run(eldest::shutdown_signal(), async |leadership| {
///         terms += 1;
///         leadership.lost().cancelled().await;
///         Ok::<_, BoxError>(())
///     }).await
/// }
/// ```
pub struct Mutates;

/// A guard that was released can no longer be used.
///
/// ```no_run
/// async fn work(guard: eldest::LockGuard) -> eldest::Result<bool> {
///     let valid = guard.is_valid();
///     guard.release().await?;
///     Ok(valid)
/// }
/// ```
///
/// ```compile_fail,E0382
/// async fn work(guard: eldest::LockGuard) -> eldest::Result<bool> {
///     guard.release().await?;
///     Ok(guard.is_valid())
/// }
/// ```
pub struct Released;

/// Only one task can await a candidate's terms.
///
/// ```no_run
/// async fn first(mut candidate: eldest::Candidate) {
///     let _ = candidate.elected().await;
/// }
/// ```
///
/// ```compile_fail,E0499
/// async fn both(mut candidate: eldest::Candidate) {
///     let _ = tokio::join!(candidate.elected(), candidate.elected());
/// }
/// ```
pub struct AwaitedOnce;

/// A program still compiles when states, or fields of states, are added.
///
/// ```no_run
/// fn ahead(status: eldest::Status) -> usize {
///     match status {
///         eldest::Status::Waiting { ahead, .. } => ahead,
///         _ => 0,
///     }
/// }
/// ```
///
/// ```compile_fail,E0638
/// fn ahead(status: eldest::Status) -> usize {
///     match status {
///         eldest::Status::Waiting { rank: _, ahead } => ahead,
///         _ => 0,
///     }
/// }
/// ```
///
/// ```compile_fail,E0004
/// fn warns(overrun: eldest::OnOverrun) -> bool {
///     match overrun {
///         eldest::OnOverrun::Release => false,
///         eldest::OnOverrun::Abort => true,
///     }
/// }
/// ```
pub struct MayGrow;

/// The compiler warns of values that are dropped by oversight.
///
/// ```no_run
/// #![deny(unused_must_use)]
/// async fn campaign(election: eldest::Election, group: eldest::Group) -> eldest::Result<()> {
///     let _candidate = election.campaign().await?;
///     let _membership = group.join().await?;
///     Ok(())
/// }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// async fn campaign(election: eldest::Election) -> eldest::Result<()> {
///     election.campaign().await?;
///     Ok(())
/// }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// async fn join(group: eldest::Group) -> eldest::Result<()> {
///     group.join().await?;
///     Ok(())
/// }
/// ```
pub struct MustUse;
