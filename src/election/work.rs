//! Describes the work that `run` accepts, and points a compiler error about other work to `run_mut`.

/// Work that [`Election::run`](crate::Election::run) and its siblings call: a function, or a closure, that takes an
/// `Input` such as a [`Leadership`](crate::Leadership) and returns a future.
///
/// The trait has an implementation for every such function, so callers never name it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not work that this method can call",
    label = "expected a function from `{Input}` to a future",
    note = "an async closure that changes what it captured needs `run_mut`, or a `Mutex` around what it changes"
)]
pub trait Work<Input, Output>: FnMut(Input) -> Output {}

#[diagnostic::do_not_recommend]
impl<W: FnMut(Input) -> Output, Input, Output> Work<Input, Output> for W {}
