//! Does work for many items on all processors, and returns the results in the order of the items.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Returns the results of `work` for all items.
pub(crate) fn map<I, T>(items: &[I], work: impl Fn(&I) -> T + Sync) -> Vec<T>
where
    I: Sync,
    T: Send,
{
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    let worker = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else {
                return;
            };
            let result = work(item);
            let mut results = results.lock().expect("no worker panicked");
            results.insert(number, result);
        }
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(worker);
        }
    });
    let results = results.into_inner().expect("no worker panicked");
    results.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..1000).collect();
        let results = map(&items, |item| item * 2);
        let expected: Vec<u64> = items.iter().map(|item| item * 2).collect();
        assert_eq!(results, expected);
        assert!(map(&[] as &[u64], |item| *item).is_empty());
    }
}
