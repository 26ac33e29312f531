//! Describes the work that `run` accepts, points a compiler error about other work to `run_mut`, and calls work.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use futures::FutureExt;
use futures::future::{Either, Map, Ready, ready};

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

/// What a panic carries.
type Panic = Box<dyn Any + Send>;

/// A future that panics when it is awaited.
type Panics<T> = Map<Ready<Panic>, fn(Panic) -> T>;

/// Calls work, and returns its future. A panic of the call itself continues where the future is awaited, so its caller
/// handles it as a panic of the future.
pub(crate) fn begin<I, F: Future>(
    work: &mut impl FnMut(I) -> F,
    input: I,
) -> Either<F, Panics<F::Output>> {
    match catch_unwind(AssertUnwindSafe(|| work(input))) {
        Ok(running) => Either::Left(running),
        Err(panic) => Either::Right(ready(panic).map(|panic| resume_unwind(panic))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_call_continues_where_the_work_is_awaited() {
        let mut calls = 0;
        let mut work = |panics: bool| -> Ready<u8> {
            calls += 1;
            assert!(!panics, "on purpose");
            ready(7)
        };
        let running = begin(&mut work, true);
        let panic = AssertUnwindSafe(running).catch_unwind().now_or_never();
        let panic = panic.expect("it has ended").expect_err("it panicked");
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
        assert_eq!(begin(&mut work, false).now_or_never(), Some(7));
        assert_eq!(calls, 2);
    }
}
