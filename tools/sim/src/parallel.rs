//! Does work for many items on all processors, and returns the results in the order of the items.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Returns the results of `work` for all items.
pub(crate) fn map<I, T>(items: &[I], work: impl Fn(&I) -> T + Sync) -> Vec<T>
where
    I: Sync,
    T: Send,
{
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            match items.get(number) {
                Some(item) => done.push((number, work(item))),
                None => return done,
            }
        }
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let mut done: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(worker)).collect();
        let joined = workers.into_iter().map(thread::ScopedJoinHandle::join);
        let joined = joined.map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)));
        joined.flatten().collect()
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..1000).collect();
        let results = map(&items, |item| item * 2);
        assert!(
            results
                .iter()
                .zip(&items)
                .all(|(result, item)| *result == item * 2)
        );
        assert_eq!(results.len(), items.len());
        assert!(map(&[] as &[u64], |item| *item).is_empty());
    }
}
