//! Holds the knowledge of etcd, the suspect and the challengers. Times are countdowns, so that time needs no bound.

use super::Challenges;
use super::rules::Rule;

/// A modification revision. [`State::renumber`] keeps revisions small: only their order counts.
pub(crate) type Revision = u8;

/// The maximum number of challengers, and of the suspect's requests in flight.
pub(crate) const MOST: usize = 2;

/// The number of elections of the suspect. It leads the first, and another candidate is before it in the second.
pub(crate) const ELECTIONS: usize = 2;

/// The suspect's anchor in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Anchor {
    /// The anchor has the create revision that the suspect announced.
    Announced,
    /// The suspect's put was sent twice, and the second one was applied after the anchor had gone.
    PutAgain,
    None,
}

/// The content of a read or an answer at the time when etcd served it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Shown {
    Clean,
    Challenged,
    Condemned,
}

/// A request of the suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    None,
    /// A read-only transaction.
    Read {
        /// How long it would let the suspect lead, counted from its sending.
        gives: u8,
        shown: Option<Shown>,
    },
    /// A transaction that deletes all challenges.
    Answer {
        gives: u8,
        shown: Option<Shown>,
    },
}

/// A request that puts a challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    None,
    Sent,
    /// The challenge exists, with that modification revision.
    Shown(Revision),
}

/// A condemnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Condemnation {
    None,
    Sent(Revision),
    Done,
}

/// A session that waits behind the suspect, in the election of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Challenger {
    pub(crate) lives: bool,
    pub(crate) ask: Ask,
    /// How long the challenger would still wait if it counted from the sending of its request.
    pub(crate) since_sending: u8,
    /// True if a request is in flight whose answer the challenger no longer awaits.
    pub(crate) late_ask: bool,
    /// The challenge that the challenger saw and counts for, and how long it still waits.
    pub(crate) counts: Option<(Revision, u8)>,
    pub(crate) condemnation: Condemnation,
    /// True if a revocation of the suspect's lease is in flight.
    pub(crate) revokes: bool,
}

/// The world at one moment.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent facts about etcd and the suspect"
)]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    // State of etcd.
    pub(crate) anchor: Anchor,
    /// The suspect's keys, by election.
    pub(crate) keys: [bool; ELECTIONS],
    /// True if another candidate is before the suspect in the second election.
    pub(crate) behind: bool,
    pub(crate) challenges: [Option<Revision>; MOST],
    // State of the suspect.
    /// How long clean reads still let the suspect lead.
    pub(crate) belief: u8,
    pub(crate) leads: [bool; ELECTIONS],
    /// True if the suspect has given up its lease.
    pub(crate) over: bool,
    pub(crate) requests: [Request; MOST],
    /// True if an answer to challenges is in flight that the suspect no longer awaits.
    pub(crate) late_answer: bool,
    /// True if a second put of the anchor is in flight.
    pub(crate) late_anchor: bool,
    pub(crate) withdrawal: Withdrawal,
    pub(crate) challengers: [Challenger; MOST],
}

/// The withdrawal of the anchor: afterwards the suspect allows no challenges, and leads by its lease alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Withdrawal {
    None,
    Sent,
    Applied,
    Done,
}

impl Challenger {
    const IDLE: Self = Self {
        lives: true,
        ask: Ask::None,
        since_sending: 0,
        late_ask: false,
        counts: None,
        condemnation: Condemnation::None,
        revokes: false,
    };
    const NONE: Self = Self {
        lives: false,
        ..Self::IDLE
    };
}

impl State {
    pub(crate) fn first(model: &Challenges) -> Self {
        let mut challengers = [Challenger::NONE; MOST];
        challengers[..model.challengers].fill(Challenger::IDLE);
        Self {
            anchor: Anchor::Announced,
            keys: [true; ELECTIONS],
            behind: true,
            challenges: [None; MOST],
            belief: model.d,
            leads: [true, false],
            over: false,
            requests: [Request::None; MOST],
            late_answer: false,
            late_anchor: true,
            withdrawal: Withdrawal::None,
            challengers,
        }
    }

    /// Returns true if the suspect acts as leader of that election.
    pub(crate) fn acts(&self, election: usize, model: &Challenges) -> bool {
        let by_lease = self.withdrawal == Withdrawal::Done
            || (election == 1 && !model.obeys(Rule::PromotionReads));
        !self.over && self.leads[election] && (self.belief > 0 || by_lease)
    }

    /// Revokes the suspect's lease, which deletes all of its keys.
    pub(crate) fn revoke(&mut self) {
        self.keys = [false; ELECTIONS];
        self.anchor = Anchor::None;
        self.late_anchor = false;
    }

    /// Puts the challenge, and returns its modification revision.
    pub(crate) fn put_challenge(&mut self, challenger: usize) -> Revision {
        let newest = self.revisions().max().unwrap_or(0);
        self.challenges[challenger] = Some(newest + 1);
        newest + 1
    }

    fn revisions(&self) -> impl Iterator<Item = Revision> {
        let known = self.challengers.iter().flat_map(|c| {
            let shown = match c.ask {
                Ask::Shown(revision) => Some(revision),
                _ => None,
            };
            let condemned = match c.condemnation {
                Condemnation::Sent(revision) => Some(revision),
                _ => None,
            };
            let counted = c.counts.map(|(revision, _)| revision);
            [shown, condemned, counted].into_iter().flatten()
        });
        known.chain(self.challenges.iter().flatten().copied())
    }

    /// Numbers the revisions by their order, so that equal worlds are equal states.
    pub(crate) fn renumber(&mut self) {
        let mut known: Vec<_> = self.revisions().collect();
        known.sort_unstable();
        known.dedup();
        let number = |revision: Revision| {
            let at = known.iter().position(|known| *known == revision);
            at.map_or(0, |at| at as Revision + 1)
        };
        for challenge in self.challenges.iter_mut().flatten() {
            *challenge = number(*challenge);
        }
        for challenger in &mut self.challengers {
            if let Ask::Shown(revision) = &mut challenger.ask {
                *revision = number(*revision);
            }
            if let Condemnation::Sent(revision) = &mut challenger.condemnation {
                *revision = number(*revision);
            }
            if let Some((revision, _)) = &mut challenger.counts {
                *revision = number(*revision);
            }
        }
    }
}
