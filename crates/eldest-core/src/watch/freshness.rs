//! Determines the time up to which observers have seen everything: probes show the store's progress, and the stream
//! shows its own.
//!
//! A probe is a linearizable read. Everything that etcd had accepted when a probe was sent has the revision that the
//! probe shows, or an older one. Once every watch of the stream has delivered everything up to there, all views of the
//! stream are complete up to the moment before the probe was sent. An event proves this for its own watch only, because
//! etcd keeps no order between the watches of a stream. So only an answer about the progress of the whole stream
//! counts.

use crate::time::Time;

/// A probe that was answered, and whose revision the stream has not reached.
#[derive(Debug, Clone, Copy)]
struct Probe {
    sent: Time,
    revision: i64,
}

/// The freshness of the views of one watch stream. Its size depends neither on the views nor on the probes.
#[derive(Debug, Clone, Default)]
pub struct Freshness {
    as_of: Option<Time>,
    /// Every watch of the stream has delivered everything up to this revision.
    delivered: i64,
    /// The first and the last probe that the stream has not reached. The last alone would never be reached by a stream
    /// that stays behind by more than the time between two probes.
    waiting: [Option<Probe>; 2],
}

impl Freshness {
    /// Returns the time up to which the views are complete, or `None` if no probe was confirmed yet.
    pub fn as_of(&self) -> Option<Time> {
        self.as_of
    }

    /// Returns `true` if a probe waits for the stream's progress.
    pub fn waits(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
    }

    /// Records that a probe sent at `sent` showed `revision`. Returns `true` if the views are fresher now.
    pub fn probed(&mut self, sent: Time, revision: i64) -> bool {
        let probe = Some(Probe { sent, revision });
        match &mut self.waiting {
            [first @ None, _] => *first = probe,
            [_, last] => *last = probe,
        }
        self.confirm()
    }

    /// Records that every watch of the stream has delivered everything up to `revision`. Returns `true` if the views
    /// are fresher now.
    pub fn delivered(&mut self, revision: i64) -> bool {
        self.delivered = self.delivered.max(revision);
        self.confirm()
    }

    /// Records that the stream broke. Its progress does not apply to the watches of the next one.
    pub fn restarted(&mut self) {
        self.delivered = 0;
        self.waiting = [None, None];
    }

    fn confirm(&mut self) -> bool {
        let before = self.as_of;
        for waiting in &mut self.waiting {
            if let Some(probe) = waiting.take_if(|probe| probe.revision <= self.delivered) {
                self.as_of = self.as_of.max(Some(probe.sent));
            }
        }
        if self.waiting[0].is_none() {
            self.waiting.swap(0, 1);
        }
        self.as_of > before
    }
}

/// The time up to which one view is complete. A confirmation of all views applies to it while it has no gap.
#[derive(Debug, Clone, Copy, Default)]
pub struct Completeness {
    /// The time up to which the view is complete by its own read.
    own: Option<Time>,
    synced: bool,
    /// The confirmation of all views before this one was synced, which does not apply to it.
    ignored: Option<Time>,
}

impl Completeness {
    /// Records that a read sent at `sent` filled the view.
    pub fn read(&mut self, sent: Time) {
        self.own = self.own.max(Some(sent));
    }

    /// Records that the view has no gap from now on; `confirmed` is the time up to which all others are complete.
    /// Returns whether that is new.
    pub fn synced(&mut self, confirmed: Option<Time>) -> bool {
        let news = !std::mem::replace(&mut self.synced, true);
        if news {
            self.ignored = confirmed;
        }
        news
    }

    /// Records that the view may miss changes from now on. Returns whether that is new.
    pub fn unsynced(&mut self, confirmed: Option<Time>) -> bool {
        self.own = self.as_of(confirmed);
        std::mem::replace(&mut self.synced, false)
    }

    /// Returns the time up to which the view is complete. `None`: the view was not read yet.
    pub fn as_of(&self, confirmed: Option<Time>) -> Option<Time> {
        let concerns = self.synced && confirmed > self.ignored;
        self.own.max(confirmed.filter(|_| concerns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn probe_counts_from_its_sending_once_the_stream_has_reached_it() {
        let mut all = Freshness::default();
        assert!(!all.probed(at(1), 10));
        assert!(all.waits() && !all.delivered(9));
        assert_eq!(all.as_of(), None);
        assert!(all.delivered(10));
        assert_eq!((all.as_of(), all.waits()), (Some(at(1)), false));
    }

    #[test]
    fn quiet_store_is_confirmed_by_the_probe_alone() {
        let mut all = Freshness::default();
        assert!(!all.delivered(10));
        assert!(all.probed(at(1), 10) && all.probed(at(2), 10));
        assert_eq!(all.as_of(), Some(at(2)));
    }

    #[test]
    fn late_stream_is_as_fresh_as_the_probes_that_it_reaches() {
        let mut all = Freshness::default();
        for second in 1..=100 {
            all.probed(at(second), 10 * second as i64);
            if second > 3 {
                all.delivered(10 * (second as i64 - 3));
            }
        }
        let as_of = all.as_of().expect("it reached some");
        assert!(as_of >= at(90), "{as_of:?}");
        assert!(as_of <= at(97), "{as_of:?}");
    }

    #[test]
    fn out_of_order_answers_never_make_views_older() {
        let mut all = Freshness::default();
        all.delivered(10);
        assert!(all.probed(at(5), 10));
        assert!(!all.probed(at(4), 9));
        assert!(!all.probed(at(4), 12) && !all.delivered(12));
        assert_eq!(all.as_of(), Some(at(5)));
    }

    #[test]
    fn broken_stream_confirms_nothing_for_the_next_one() {
        let mut all = Freshness::default();
        all.probed(at(1), 10);
        all.restarted();
        assert!(!all.waits() && !all.delivered(0));
        all.delivered(20);
        all.restarted();
        assert!(!all.probed(at(2), 15));
        assert_eq!(all.as_of(), None);
    }

    #[test]
    fn view_is_as_fresh_as_its_read_until_a_probe_is_confirmed() {
        let mut view = Completeness::default();
        assert_eq!(view.as_of(Some(at(5))), None);
        view.read(at(4));
        assert!(view.synced(Some(at(5))) && !view.synced(Some(at(6))));
        assert_eq!(view.as_of(Some(at(5))), Some(at(4)), "it was before");
        assert_eq!(view.as_of(Some(at(6))), Some(at(6)));
    }

    #[test]
    fn view_with_a_gap_stays_as_old_as_it_is() {
        let mut view = Completeness::default();
        view.read(at(1));
        view.synced(None);
        assert!(view.unsynced(Some(at(5))) && !view.unsynced(Some(at(6))));
        assert_eq!(view.as_of(Some(at(9))), Some(at(5)));
        view.read(at(10));
        view.synced(Some(at(9)));
        assert_eq!(view.as_of(Some(at(9))), Some(at(10)));
    }
}
