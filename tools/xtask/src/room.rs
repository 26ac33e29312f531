//! Decides how many tests run at once: as many as keep the processors busy, and fewer once they are overloaded.
//!
//! Most tests wait for a deadline at any time, but a test that starts an etcd or a browser needs a processor. A fixed number
//! overloads the machine while many begin, which delays renewals, and leaves it idle while many wait.

use std::fs;
use std::num::NonZero;
use std::thread;
use std::time::Duration;

/// How often the load is measured.
pub(crate) const PERIOD: Duration = Duration::from_millis(500);
/// With more at once, tests wait for the disk.
const MOST: usize = 32;
/// The processors' time, in the words of proc(5).
const STAT: &str = "/proc/stat";
/// The number of the idle time among the times of all processors. The time of programs with a lower priority is not idle: beside a
/// build at nice 5, twice as many tests as the machine bears ran into their deadlines. The time of those with the lowest priority
/// is: they leave the processors to everybody else.
const IDLE: usize = 3;
const LOWEST_PRIORITY: i64 = 19;
/// The share of idle time from which another test starts, and below which one less runs.
const IDLE_ENOUGH: f64 = 0.2;
const OVERLOADED: f64 = 0.04;

/// The number of tests that may run at once.
#[derive(Debug)]
pub(crate) struct Room {
    fewest: usize,
    now: usize,
    last: Option<Times>,
}

/// The time of all processors since the machine started, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    idle: u64,
    all: u64,
}

impl Room {
    /// Makes room for so many tests on each processor, however busy the processors are. Where the load cannot be measured,
    /// it stays at that.
    pub(crate) fn of(per_processor: usize) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Self::starting_at((per_processor * processors).min(MOST))
    }

    pub(crate) fn starting_at(fewest: usize) -> Self {
        Self {
            fewest,
            now: fewest,
            last: Times::read(),
        }
    }

    pub(crate) fn now(&self) -> usize {
        self.now
    }

    pub(crate) fn most(&self) -> usize {
        self.fewest.max(MOST)
    }

    /// Measures the load since the last time, while so many tests run.
    pub(crate) fn measure(&mut self, running: usize) {
        let times = Times::read();
        if let Some((last, times)) = self.last.zip(times) {
            self.adapt(running, times.idle_share_since(last));
        }
        self.last = times;
    }

    fn adapt(&mut self, running: usize, idle: f64) {
        if idle >= IDLE_ENOUGH && running >= self.now {
            self.now = (self.now + 1).min(self.most());
        } else if idle < OVERLOADED {
            self.now = (self.now - 1).max(self.fewest);
        }
    }
}

impl Times {
    fn read() -> Option<Self> {
        let mut times = Self::parse(&fs::read_to_string(STAT).ok()?)?;
        times.idle += at_lowest_priority();
        Some(times)
    }

    fn parse(stat: &str) -> Option<Self> {
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
        let numbers = numbers.split_whitespace().map(str::parse);
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        Some(Self {
            idle: numbers.get(IDLE).copied()?,
            // The guests' time is part of the first ones.
            all: numbers.iter().take(8).sum(),
        })
    }

    /// Returns the idle part of the time since then; 1 if no time has passed. The times of a process end with it, so an end
    /// makes this part smaller once.
    #[allow(clippy::cast_precision_loss)]
    fn idle_share_since(self, last: Self) -> f64 {
        let all = self.all.saturating_sub(last.all);
        let idle = self.idle.saturating_sub(last.idle);
        if all == 0 {
            1.0
        } else {
            idle as f64 / all as f64
        }
    }
}

/// Returns the time that processes of the lowest priority have taken, in ticks.
fn at_lowest_priority() -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats =
        processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats.filter_map(|stat| if_lowest(&stat)).sum()
}

/// Returns the time of a process from its line in proc(5), if it has the lowest priority.
fn if_lowest(stat: &str) -> Option<u64> {
    // The name of the program may contain anything, and stands in parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let [user, system] = [11, 12].map(|field| fields.get(field)?.parse::<u64>().ok());
    let nice: i64 = fields.get(16)?.parse().ok()?;
    (nice == LOWEST_PRIORITY).then_some(user? + system?)
}

#[cfg(test)]
mod tests {
    use super::{MOST, Room, Times, if_lowest};

    #[test]
    fn room_grows_while_processors_are_idle_and_shrinks_to_the_fewest_under_load() {
        let mut room = Room::starting_at(4);
        room.adapt(3, 0.9);
        assert_eq!(room.now(), 4, "there was room for the fourth already");
        room.adapt(4, 0.9);
        room.adapt(5, 0.1);
        assert_eq!(room.now(), 5);
        room.adapt(5, 0.01);
        room.adapt(5, 0.01);
        assert_eq!(room.now(), 4);
        for running in 4..2 * MOST {
            room.adapt(running, 0.9);
        }
        assert_eq!(room.now(), MOST);
    }

    #[test]
    fn idle_share_is_that_of_all_processors() {
        let times = |text| Times::parse(text).unwrap();
        let before = times("cpu  100 10 40 800 40 0 5 5 7 0\ncpu0 1 1 1 1\n");
        assert_eq!((before.idle, before.all), (800, 1000));
        let after = times("cpu  160 20 50 820 40 0 5 5 9 0\n");
        assert!((after.idle_share_since(before) - 0.2).abs() < 1e-9);
        assert_eq!(Times::parse("cpu 1 x\n"), None);
    }

    #[test]
    fn time_of_a_process_is_idle_only_at_the_lowest_priority() {
        let stat =
            |nice| format!("7 (a) 1 b) R 1 7 7 0 -1 0 9 9 9 9 30 12 5 5 39 {nice} 1 0 99 1 1\n");
        assert_eq!(if_lowest(&stat(19)), Some(42));
        assert_eq!(if_lowest(&stat(15)), None);
        assert_eq!(if_lowest("7 (a) R 1"), None);
    }
}
