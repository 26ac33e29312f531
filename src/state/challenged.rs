//! Remembers the challenges of a session, by it and of it, for its handles.

use std::time::Duration;

use eldest_core::action::ChallengeNote;

/// The number of challenges that are remembered, by the session and of it.
const REMEMBERED: usize = 16;

/// The last step of a challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChallengeStep {
    /// The session gives no sign of life. No challenge stands yet.
    Suspected,
    /// A challenge stands.
    Challenged,
    /// The challenged session has answered.
    Answered,
    /// The challenged session has answered nothing, and lost its place.
    Condemned,
}

impl ChallengeStep {
    /// Returns the step in one stable word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Suspected => "suspected",
            Self::Challenged => "challenged",
            Self::Answered => "answered",
            Self::Condemned => "condemned",
        }
    }
}

/// A suspicion of this session that another one is silent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Suspicion {
    /// The suspicion's number, larger than that of every earlier one.
    pub number: u64,
    /// The suspect's lease.
    pub lease_id: i64,
    /// The suspect's identity; `None`: no key of it was seen.
    pub identity: Option<String>,
    /// When it began, as time since 1970 by the wall clock.
    pub since: Duration,
    /// The last step.
    pub step: ChallengeStep,
    /// True if this session suspects it no longer.
    pub is_over: bool,
}

/// A challenge of this session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The challenger's lease; `None`: the challenge itself was not seen.
    pub by: Option<i64>,
    /// When it was seen, as time since 1970 by the wall clock.
    pub since: Duration,
    /// The last step.
    pub step: ChallengeStep,
}

/// The last challenges of a session, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Challenged {
    /// Suspicions of this session, and what came of them.
    pub made: Vec<Suspicion>,
    /// Challenges of this session by others.
    pub received: Vec<Received>,
    numbers: u64,
}

impl Challenged {
    /// Records a step. `identity` returns the identity of the session of a lease.
    pub(crate) fn record(
        &mut self,
        note: ChallengeNote,
        now: Duration,
        identity: impl FnOnce(i64) -> Option<String>,
    ) {
        match note {
            ChallengeNote::Suspects { lease } => {
                if self.made.len() >= REMEMBERED {
                    let over = self.made.iter().position(|suspicion| suspicion.is_over);
                    self.made.remove(over.unwrap_or_default());
                }
                self.numbers += 1;
                self.made.push(Suspicion {
                    number: self.numbers,
                    lease_id: lease,
                    identity: identity(lease),
                    since: now,
                    step: ChallengeStep::Suspected,
                    is_over: false,
                });
            }
            ChallengeNote::Challenges { lease, .. } => self.step(lease, ChallengeStep::Challenged),
            ChallengeNote::Refuted { lease, .. } => self.step(lease, ChallengeStep::Answered),
            ChallengeNote::Condemns { lease } => self.step(lease, ChallengeStep::Condemned),
            ChallengeNote::Trusts { lease } => {
                if let Some(suspicion) = self.suspicion(lease) {
                    suspicion.is_over = true;
                }
            }
            ChallengeNote::Challenged { by } => self.receive(Some(by), now),
            ChallengeNote::Answered => self.settle(ChallengeStep::Answered),
            ChallengeNote::Condemned => {
                if !self.received.iter().any(is_open) {
                    self.receive(None, now);
                }
                self.settle(ChallengeStep::Condemned);
            }
            // No challenge: the log says why others lead.
            ChallengeNote::StepsBack { .. } => {}
        }
    }

    fn suspicion(&mut self, lease: i64) -> Option<&mut Suspicion> {
        let mut made = self.made.iter_mut();
        made.find(|suspicion| suspicion.lease_id == lease && !suspicion.is_over)
    }

    fn step(&mut self, lease: i64, step: ChallengeStep) {
        if let Some(suspicion) = self.suspicion(lease) {
            suspicion.step = step;
        }
    }

    fn receive(&mut self, by: Option<i64>, since: Duration) {
        if self.received.len() >= REMEMBERED {
            self.received.remove(0);
        }
        self.received.push(Received {
            by,
            since,
            step: ChallengeStep::Challenged,
        });
    }

    /// Sets the step of all challenges of this session that stood.
    fn settle(&mut self, step: ChallengeStep) {
        for received in self
            .received
            .iter_mut()
            .filter(|received| is_open(received))
        {
            received.step = step;
        }
    }
}

fn is_open(received: &Received) -> bool {
    received.step == ChallengeStep::Challenged
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    fn recorded(notes: &[ChallengeNote]) -> Challenged {
        let mut log = Challenged::default();
        for note in notes {
            log.record(*note, NOW, |lease| (lease == 7).then(|| "a".to_owned()));
        }
        log
    }

    fn steps(log: &Challenged) -> Vec<(Option<&str>, &str, bool)> {
        let shown = |s: &Suspicion| {
            (
                s.identity.as_deref().map(|_| "a"),
                s.step.as_str(),
                s.is_over,
            )
        };
        log.made.iter().map(shown).collect()
    }

    #[test]
    fn suspicion_shows_its_last_step_and_its_end() {
        let lease = 7;
        let wait = Duration::from_secs(1);
        let begun = [
            ChallengeNote::Suspects { lease },
            ChallengeNote::Challenges { lease, wait },
        ];
        assert_eq!(steps(&recorded(&begun)), [(Some("a"), "challenged", false)]);
        let ended = [
            begun[0],
            begun[1],
            ChallengeNote::Refuted { lease, times: 1 },
            ChallengeNote::Trusts { lease },
            ChallengeNote::Suspects { lease },
            ChallengeNote::Condemns { lease },
            ChallengeNote::Suspects { lease: 8 },
        ];
        let expected = [
            (Some("a"), "answered", true),
            (Some("a"), "condemned", false),
            (None, "suspected", false),
        ];
        assert_eq!(steps(&recorded(&ended)), expected);
    }

    #[test]
    fn received_challenges_are_answered_together_or_cost_the_place() {
        let step = |notes: &[ChallengeNote]| {
            let log = recorded(notes);
            let each = log.received.iter().map(|r| (r.by, r.step.as_str()));
            each.collect::<Vec<_>>()
        };
        let [first, second] = [1, 2].map(|by| ChallengeNote::Challenged { by });
        let answered = [(Some(1), "answered"), (Some(2), "answered")];
        assert_eq!(step(&[first, second, ChallengeNote::Answered]), answered);
        let lost = [
            first,
            ChallengeNote::Answered,
            second,
            ChallengeNote::Condemned,
        ];
        assert_eq!(step(&lost), [answered[0], (Some(2), "condemned")]);
        assert_eq!(step(&[ChallengeNote::Condemned]), [(None, "condemned")]);
    }

    #[test]
    fn live_suspicions_are_remembered_longest() {
        let mut notes = vec![ChallengeNote::Suspects { lease: 7 }];
        for lease in 8..50 {
            notes.push(ChallengeNote::Suspects { lease });
            notes.push(ChallengeNote::Trusts { lease });
            notes.push(ChallengeNote::Challenged { by: lease });
        }
        let log = recorded(&notes);
        assert_eq!(
            (log.made.len(), log.received.len()),
            (REMEMBERED, REMEMBERED)
        );
        assert_eq!((log.made[0].lease_id, log.made[1].lease_id), (7, 35));
        assert_eq!(log.received[0].by, Some(34));
    }
}
