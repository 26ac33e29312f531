//! Opens and closes the spans of renewals, campaigns and terms. A span that no subscriber records is not kept.

use tracing::Span;
use tracing::field::Empty;

use crate::state::Status;

/// Opens a span of an election; for a lock or a semaphore it is a detail.
macro_rules! span {
    ($brief:expr, $($span:tt)*) => {
        if $brief {
            tracing::debug_span!($($span)*)
        } else {
            tracing::info_span!($($span)*)
        }
    };
}

/// The candidate to which spans belong.
#[derive(Clone, Copy)]
pub(super) struct Whose<'a> {
    pub(super) identity: &'a str,
    pub(super) election: &'a str,
    /// True for a lock or a semaphore.
    pub(super) brief: bool,
}

/// Opens the span of a renewal, from its sending to its verification, or of opening the stream for renewals.
pub(super) fn renewal(identity: &str, lease: i64) -> Span {
    tracing::debug_span!(
        target: "eldest::session", parent: None, "renewal",
        identity, lease = %format_args!("{lease:x}"), outcome = Empty,
    )
}

/// Opens the span of a term, from its beginning until it is over and its work has ended. `None`: no subscriber records
/// it.
pub(super) fn term(whose: Whose<'_>, token: i64) -> Option<Box<Span>> {
    let (identity, election) = (whose.identity, whose.election);
    let span = span!(
        whose.brief, target: "eldest::election", parent: None, "term",
        identity, election, token, reason = Empty,
    );
    (!span.is_disabled()).then(|| Box::new(span))
}

/// A candidate's step on its way to leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Join,
    Wait,
    HandOver,
}

/// The span of a campaign, which ends when the candidate leads or leaves, and that of its present step.
#[derive(Default)]
pub(super) struct Campaign(Option<Box<Open>>);

struct Open {
    campaign: Span,
    step: Option<(Step, Span)>,
}

impl Campaign {
    /// Follows the candidate's status.
    pub(super) fn status(&mut self, whose: Whose<'_>, status: Status) {
        match status {
            Status::Joining => self.step(whose, Step::Join, 0),
            Status::Waiting { ahead: 0, .. } => self.step(whose, Step::HandOver, 0),
            Status::Waiting { ahead, .. } => self.step(whose, Step::Wait, ahead),
            Status::Present => drop(self.end("present")),
            // The campaign has ended, or did not begin.
            _ => {}
        }
    }

    /// The candidate leads. The span of its term refers to that of its campaign.
    pub(super) fn elected(&mut self, whose: Whose<'_>, term: Option<&Span>) {
        self.step(whose, Step::HandOver, 0);
        if let (Some(campaign), Some(term)) = (self.end("elected"), term) {
            term.follows_from(&campaign);
        }
    }

    fn step(&mut self, whose: Whose<'_>, step: Step, ahead: usize) {
        let (identity, election, brief) = (whose.identity, whose.election, whose.brief);
        if self.0.is_none() {
            let campaign = span!(
                brief, target: "eldest::election", parent: None, "campaign",
                identity, election, outcome = Empty,
            );
            if campaign.is_disabled() {
                return;
            }
            let step = None;
            self.0 = Some(Box::new(Open { campaign, step }));
        }
        let Some(open) = &mut self.0 else { return };
        if open.step.as_ref().is_some_and(|(now, _)| *now == step) {
            return;
        }
        // The span of the step before ends.
        open.step = None;
        let parent = &open.campaign;
        let span = match step {
            Step::Join => {
                span!(brief, target: "eldest::election", parent: parent, "join", identity, election)
            }
            Step::Wait => {
                span!(brief, target: "eldest::election", parent: parent, "wait", identity, election, ahead)
            }
            Step::HandOver => {
                span!(brief, target: "eldest::election", parent: parent, "hand_over", identity, election)
            }
        };
        open.step = Some((step, span));
    }

    /// Ends the campaign's span with its outcome.
    pub(super) fn end(&mut self, outcome: &str) -> Option<Span> {
        let open = self.0.take()?;
        open.campaign.record("outcome", outcome);
        Some(open.campaign)
    }
}
