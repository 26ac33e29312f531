//! Decides which failures of a session are logged: the first of its kind and of each reason, then a summary now and
//! then, then the end.
//!
//! An outage makes every request of every election fail, again at every attempt. Metrics count them all.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::metrics;
use eldest_core::action::{Class, Note};
use eldest_core::time::Time;

/// The shortest time between two summaries.
const EVERY: Duration = Duration::from_secs(10);
/// How many different reasons of one outage are logged at once: the first ("channel closed") seldom is the cause
/// ("certificate expired").
const REASONS: usize = 4;
/// How many elections a line names; the others are counted.
const NAMES: usize = 5;

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Renewal,
    /// A renewal that etcd's present leader did not confirm.
    Refusal,
    Join,
    Watch,
    Request(&'static str),
}

/// A line to log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) what: What,
    pub(super) class: Class,
    pub(super) step: Step,
    /// The reason of the last failure.
    pub(super) why: String,
    /// The names of the elections whose requests failed.
    pub(super) elections: String,
}

/// Where in an outage a line belongs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    First,
    /// The number of failures so far, and the time since the first.
    GoesOn(u64, Duration),
    Over(u64, Duration),
}

/// The failures of one session that are not over.
pub(super) struct Failures {
    identity: Arc<str>,
    /// The prefix of all keys of the session.
    namespace: Arc<[u8]>,
    outages: Vec<Outage>,
    /// The time of the last failure of each class that has an outage.
    lasts: HashMap<Class, Time>,
    /// How long no failure may occur before the outage counts as over; longer than the time between attempts.
    quiet: Duration,
}

/// Failures of one kind and class.
struct Outage {
    what: What,
    class: Class,
    why: String,
    /// The reasons that were logged at once.
    reasons: Vec<String>,
    names: BTreeSet<String>,
    began: Time,
    last: Time,
    logged: Time,
    count: u64,
}

impl Outage {
    fn line(&mut self, step: Step, now: Time) -> Line {
        self.logged = now;
        Line {
            what: self.what,
            class: self.class,
            step,
            why: self.why.clone(),
            elections: list(self.names.iter().map(String::as_str)),
        }
    }

    fn over(mut self) -> Line {
        let lasted = self.last.since(self.began);
        self.line(Step::Over(self.count, lasted), self.last)
    }
}

impl Line {
    /// Logs the line.
    fn log(&self, identity: &str) {
        let (why, elections) = (&*self.why, &*self.elections);
        let class = tracing::field::debug(self.class);
        match (&self.step, self.what) {
            (Step::First, What::Renewal) => {
                tracing::warn!(target: "eldest::session", identity, class, elections, why, "renewal failed");
            }
            (Step::First, What::Refusal) => {
                tracing::warn!(target: "eldest::session", identity, elections, "renewal refused: etcd's current leader did not confirm it");
            }
            (Step::First, What::Join) => {
                tracing::warn!(target: "eldest::election", identity, class, election = elections, why, "join failed");
            }
            (Step::First, What::Watch) => {
                tracing::warn!(target: "eldest::session", identity, elections, why, "watch lost");
            }
            (Step::First, What::Request(what)) => {
                tracing::warn!(target: "eldest::session", identity, what, class, elections, why, "request failed");
            }
            (Step::GoesOn(failures, lasted), what) => {
                let what = what.name();
                tracing::warn!(target: "eldest::session", identity, what, class, elections, failures, ?lasted, why, "still failing");
            }
            (Step::Over(failures, lasted), what) => {
                let what = what.name();
                tracing::warn!(target: "eldest::session", identity, what, class, elections, failures, ?lasted, "no longer failing");
            }
        }
    }
}

impl What {
    fn name(self) -> &'static str {
        match self {
            What::Renewal => "renewal",
            What::Refusal => "renewal refused",
            What::Join => "join",
            What::Watch => "watch stream",
            What::Request(what) => what,
        }
    }
}

impl Failures {
    /// Makes the record of a session without failures. `attempts`: the longest time between two attempts at the same
    /// request.
    pub(super) fn new(attempts: Duration, identity: Arc<str>, namespace: Arc<[u8]>) -> Self {
        Self {
            identity,
            namespace,
            outages: Vec::new(),
            lasts: HashMap::new(),
            quiet: EVERY.max(attempts.saturating_mul(2)),
        }
    }

    /// Counts a failure that every task of the session may meet; returns the line to log for it now.
    pub(super) fn note(&mut self, now: Time, note: &Note) -> Option<Line> {
        let identity = &*self.identity;
        match note {
            Note::RequestFailed { what, about, error } => {
                metrics::request_failed(identity, what);
                let what = (What::Request(what), error.class);
                self.about(now, what, &error.to_string(), about)
            }
            Note::WatchLost { why } => {
                metrics::watch_lost(identity);
                self.about(now, (What::Watch, Class::Retry), why, &[])
            }
            Note::StoreChanged { was, is } => {
                tracing::error!(target: "eldest::session", identity, ?was, ?is, "etcd is another cluster or was restored from a backup: fencing tokens may repeat");
                None
            }
            _ => None,
        }
    }

    /// Calls [`Failures::failed`] for one election, by its key or prefix, or for the whole session.
    pub(super) fn about(
        &mut self,
        now: Time,
        what: (What, Class),
        why: &str,
        about: &[u8],
    ) -> Option<Line> {
        let name = (!about.is_empty()).then(|| name_of(&self.namespace, about));
        self.failed(now, what, why, name)
    }

    /// Logs the lines. A failure of the whole session concerns `all`.
    pub(super) fn log_lines(
        &self,
        lines: impl IntoIterator<Item = Line>,
        all: impl Fn() -> String,
    ) {
        for mut line in lines {
            if line.elections.is_empty() {
                line.elections = all();
            }
            line.log(&self.identity);
        }
    }

    /// Counts a failure, and returns the line to log now: for the first failure of its kind and class, for the first of
    /// each further reason up to a bound, and for a summary now and then. `names`: the elections that are affected.
    fn failed(
        &mut self,
        now: Time,
        (what, class): (What, Class),
        why: &str,
        names: impl IntoIterator<Item = String>,
    ) -> Option<Line> {
        let outages = &mut self.outages;
        let known = outages
            .iter()
            .position(|outage| (outage.what, outage.class) == (what, class));
        let at = known.unwrap_or_else(|| {
            outages.push(Outage {
                what,
                class,
                why: String::new(),
                reasons: Vec::new(),
                names: BTreeSet::new(),
                began: now,
                last: now,
                logged: now,
                count: 0,
            });
            outages.len() - 1
        });
        let outage = &mut outages[at];
        outage.names.extend(names);
        why.clone_into(&mut outage.why);
        outage.last = now;
        outage.count += 1;
        self.lasts.insert(class, now);
        if outage.reasons.len() < REASONS && !outage.reasons.iter().any(|reason| reason == why) {
            outage.reasons.push(why.to_owned());
            return Some(outage.line(Step::First, now));
        }
        // A failure writes the summary, never the time alone: no line reports an outage as lasting when it is over.
        if now >= outage.logged.after(EVERY) {
            let step = Step::GoesOn(outage.count, now.since(outage.began));
            return Some(outage.line(step, now));
        }
        None
    }

    /// Renewals succeed again; returns the lines of the outages that this ends.
    pub(super) fn renewed(&mut self) -> Vec<Line> {
        let mut lasts: HashMap<Class, Time> = HashMap::new();
        let ends = |outage: &mut Outage| {
            let ends = matches!(outage.what, What::Renewal | What::Refusal);
            if !ends {
                let last = lasts.entry(outage.class).or_default();
                *last = outage.last.max(*last);
            }
            ends
        };
        let over: Vec<_> = self.outages.extract_if(.., ends).collect();
        self.lasts = lasts;
        over.into_iter().map(Outage::over).collect()
    }

    /// Returns the time at which [`Failures::due`] has something to log.
    pub(super) fn next(&self) -> Option<Time> {
        let last = self.lasts.values().min();
        last.map(|last| last.after(self.quiet))
    }

    /// Returns the lines of the outages that are over by now. An outage lasts while others of its class do: a kind of
    /// request that is rarely repeated proves nothing by its silence.
    pub(super) fn due(&mut self, now: Time) -> Vec<Line> {
        let quiet = self.quiet;
        self.lasts.retain(|_, last| now < last.after(quiet));
        let over = |outage: &mut Outage| !self.lasts.contains_key(&outage.class);
        let over = self.outages.extract_if(.., over);
        over.map(Outage::over).collect()
    }
}

/// Returns the name, within the namespace, of the election to which a key or prefix belongs.
pub(super) fn name_of(namespace: &[u8], about: &[u8]) -> String {
    let name = about.strip_prefix(namespace).unwrap_or(about);
    let end = name.iter().rposition(|byte| *byte == b'/');
    let name = &name[..end.unwrap_or(name.len())];
    String::from_utf8_lossy(name).into_owned()
}

/// The first few names, and how many more there are.
pub(super) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    let some = names[..names.len().min(NAMES)].join(", ");
    match names.len().saturating_sub(NAMES) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: (What, Class) = (What::Request("list"), Class::Retry);
    const RENEWAL: (What, Class) = (What::Renewal, Class::Retry);

    fn at(seconds: u64) -> Time {
        Time::ZERO.after(Duration::from_secs(seconds))
    }

    fn with(attempts: Duration) -> Failures {
        Failures::new(attempts, Arc::default(), Arc::default())
    }

    fn new() -> Failures {
        with(Duration::from_secs(1))
    }

    fn fail(failures: &mut Failures, seconds: u64, name: &str) -> Option<Step> {
        let line = failures.failed(at(seconds), LIST, "cut off", [name.to_owned()]);
        line.map(|line| line.step)
    }

    #[test]
    fn keys_and_prefixes_are_called_by_the_name_of_their_election() {
        for (about, name) in [
            ("eldest/team/jobs/", "team/jobs"),
            ("eldest/team/jobs/7f", "team/jobs"),
            ("/team/jobs/7f", "/team/jobs"),
        ] {
            assert_eq!(name_of(b"eldest/", about.as_bytes()), name);
        }
    }

    #[test]
    fn an_outage_is_logged_once_and_summed_up_at_a_bounded_rate() {
        let mut failures = new();
        let mut lines = 0;
        for second in 0..=60 {
            for election in 0..25 {
                lines +=
                    usize::from(fail(&mut failures, second, &format!("e{election:02}")).is_some());
            }
            lines += failures.due(at(second)).len();
        }
        assert_eq!(lines, 1 + 6, "one at once, and one for each 10 s");
        let over = failures.due(at(70));
        let [over] = &over[..] else {
            panic!("one line: {over:?}");
        };
        assert_eq!(over.step, Step::Over(61 * 25, Duration::from_secs(60)));
        assert_eq!(over.elections, "e00, e01, e02, e03, e04 and 20 more");
        assert_eq!(failures.next(), None);
    }

    #[test]
    fn an_outage_that_is_over_is_not_reported_as_lasting() {
        let mut failures = new();
        assert_eq!(fail(&mut failures, 0, "a"), Some(Step::First));
        assert_eq!(fail(&mut failures, 9, "b"), None);
        assert_eq!(failures.next(), Some(at(19)), "when it is over");
        assert_eq!(failures.due(at(18)), []);
        let over = failures.due(at(19));
        assert_eq!(over.len(), 1);
        assert_eq!(over[0].step, Step::Over(2, Duration::from_secs(9)));
        assert_eq!(over[0].elections, "a, b", "each that failed is named");
    }

    #[test]
    fn a_failure_reports_that_its_outage_continues() {
        let mut failures = new();
        for second in [0, 5] {
            fail(&mut failures, second, "a");
        }
        let goes_on = Some(Step::GoesOn(3, Duration::from_secs(10)));
        assert_eq!(fail(&mut failures, 10, "b"), goes_on);
        assert_eq!(fail(&mut failures, 11, "b"), None);
    }

    #[test]
    fn another_kind_or_class_is_logged_at_once() {
        let mut failures = new();
        assert_eq!(fail(&mut failures, 0, "a"), Some(Step::First));
        for other in [RENEWAL, (What::Request("list"), Class::Denied)] {
            let line = failures.failed(at(1), other, "why", []);
            assert_eq!(line.expect("a line").step, Step::First);
        }
    }

    #[test]
    fn another_reason_is_logged_at_once_up_to_a_bound() {
        let mut failures = new();
        let mut is_logged = |why: &str| failures.failed(at(1), RENEWAL, why, []).is_some();
        assert!(is_logged("channel closed"));
        assert!(!is_logged("channel closed"));
        assert!(is_logged("certificate expired"));
        let further = (0..100).filter(|port| is_logged(&format!("no answer at port {port}")));
        assert_eq!(further.count(), REASONS - 2);
    }

    #[test]
    fn a_renewal_ends_the_failures_of_renewals_at_once_and_no_others() {
        let mut failures = new();
        fail(&mut failures, 0, "a");
        failures.failed(at(1), RENEWAL, "cut off", []);
        failures.failed(at(4), RENEWAL, "cut off", []);
        let over = failures.renewed();
        assert_eq!(over.len(), 1);
        assert_eq!(over[0].step, Step::Over(2, Duration::from_secs(3)));
        assert_eq!(failures.renewed(), []);
        assert_eq!(fail(&mut failures, 5, "a"), None, "still the same outage");
    }

    #[test]
    fn an_outage_is_not_over_while_others_of_its_class_last() {
        let mut failures = new();
        fail(&mut failures, 0, "a");
        let denied = (What::Request("put"), Class::Denied);
        failures.failed(at(0), denied, "no permission", []);
        failures.failed(at(5), RENEWAL, "cut off", []);
        assert_eq!(failures.next(), Some(at(10)), "the refusal is over");
        assert_eq!(failures.due(at(10)).len(), 1);
        assert_eq!(failures.next(), Some(at(15)));
        assert_eq!(failures.due(at(14)), []);
        assert_eq!(failures.due(at(15)).len(), 2);
    }

    #[test]
    fn an_outage_is_not_over_between_two_slow_attempts() {
        let mut failures = with(Duration::from_secs(30));
        fail(&mut failures, 0, "a");
        assert_eq!(failures.due(at(59)), []);
        assert_eq!(failures.due(at(60)).len(), 1);
    }
}
