//! Logs and counts the steps of challenges.

use std::time::Duration;

use super::Driver;
use crate::metrics;
use crate::state::Announcement;
use eldest_core::action::ChallengeNote;

/// The number of answers after which a session that gives no sign of life is named: it lives, so its port is at fault.
const UNREACHABLE: u32 = 3;
/// The shortest time between two lines that this session is challenged.
const BETWEEN: Duration = Duration::from_secs(10);

impl Driver {
    pub(super) fn challenge_note(&mut self, note: ChallengeNote) {
        let identity = &*self.identity;
        if let Some(kind) = kind(note) {
            metrics::challenge(identity, kind);
        }
        let unix_time = self.env.unix_time();
        let identity_of = |lease| {
            let value = self.core.announced_by(lease)?;
            Some(Announcement::decode(value).identity().to_owned())
        };
        self.challenged
            .send_modify(|challenged| challenged.record(note, unix_time, identity_of));
        match note {
            ChallengeNote::Suspects { lease } => {
                tracing::debug!(target: "eldest::session", identity, lease = format!("{lease:x}"), "session suspected");
            }
            ChallengeNote::Challenges { lease, wait } => {
                tracing::info!(target: "eldest::session", identity, lease = format!("{lease:x}"), ?wait, "session challenged");
            }
            ChallengeNote::Refuted { lease, times } if times == UNREACHABLE => {
                tracing::warn!(
                    target: "eldest::session", identity, lease = format!("{lease:x}"),
                    "a session answers challenges, and gives no sign of life: let this node reach its port"
                );
            }
            ChallengeNote::Condemns { lease } => {
                tracing::warn!(target: "eldest::session", identity, lease = format!("{lease:x}"), "silent session condemned");
            }
            ChallengeNote::Challenged { by } => {
                let now = self.env.now();
                let is_due = |last| now.since(last) >= BETWEEN;
                if self.challenged_at.is_none_or(is_due) {
                    self.challenged_at = Some(now);
                    tracing::info!(target: "eldest::session", identity, by = format!("{by:x}"), "challenged");
                }
            }
            ChallengeNote::Refuted { .. }
            | ChallengeNote::Answered
            | ChallengeNote::Trusts { .. } => {}
            ChallengeNote::Condemned => {
                tracing::warn!(target: "eldest::session", identity, "condemned by another session");
            }
            ChallengeNote::StepsBack {
                lease,
                is_denied: true,
            } => {
                let anchor = format!("~session/{lease:x}");
                tracing::warn!(target: "eldest::session", identity, anchor, "this session may not read its anchor, so others lead: let its user read and write below ~session/");
            }
            ChallengeNote::StepsBack { .. } => {
                tracing::warn!(target: "eldest::session", identity, "etcd answers too late for this session's challenges, so others lead: allow a longer time");
            }
        }
    }
}

/// Returns the label of the metric; `None`: the step is not counted.
const fn kind(note: ChallengeNote) -> Option<&'static str> {
    Some(match note {
        ChallengeNote::Suspects { .. } => "suspected",
        ChallengeNote::Challenges { .. } => "sent",
        ChallengeNote::Refuted { .. } => "refuted",
        ChallengeNote::Condemns { .. } => "condemned",
        ChallengeNote::Challenged { .. } => "received",
        ChallengeNote::Answered => "answered",
        ChallengeNote::Condemned => "lost",
        ChallengeNote::StepsBack { .. } => "stepped_back",
        ChallengeNote::Trusts { .. } => return None,
    })
}
