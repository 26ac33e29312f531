//! Holds what etcd, the suspect and the challengers know. Times are countdowns, so that time needs no bound.

use super::Challenges;
use super::rules::Rule;

/// A modification revision. [`State::renumber`] keeps them small: only their order counts.
pub(crate) type Revision = u8;

/// At most so many challengers, and so many requests of the suspect under way.
pub(crate) const MOST: usize = 2;

/// Elections in which the suspect stands. It leads the first, and another candidate stands before it in the second.
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
        /// For how long it would let the suspect lead, counted from its sending.
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
    /// The challenge stands, with that modification revision.
    Shown(Revision),
}

/// A condemnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Condemnation {
    None,
    Sent(Revision),
    Done,
}

/// A session that stands behind the suspect, in the election of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Challenger {
    pub(crate) lives: bool,
    pub(crate) ask: Ask,
    /// From the sending of the request on, how long the challenger would still wait.
    pub(crate) since_sending: u8,
    /// A request is under way whose answer nobody awaits any more.
    pub(crate) late_ask: bool,
    /// The challenger counts: the challenge that it saw, and for how long it still waits.
    pub(crate) counts: Option<(Revision, u8)>,
    pub(crate) condemnation: Condemnation,
    /// A revocation of the suspect's lease is under way.
    pub(crate) revokes: bool,
}

/// The world at one moment.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent facts about etcd and the suspect"
)]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    // etcd
    pub(crate) anchor: Anchor,
    /// The suspect's keys, by election.
    pub(crate) keys: [bool; ELECTIONS],
    /// Another candidate stands before it in the second election.
    pub(crate) behind: bool,
    pub(crate) challenges: [Option<Revision>; MOST],
    // the suspect
    /// For how long clean reads let it lead.
    pub(crate) belief: u8,
    pub(crate) leads: [bool; ELECTIONS],
    /// The suspect has given up its lease.
    pub(crate) over: bool,
    pub(crate) requests: [Request; MOST],
    /// An answer to challenges is under way that the suspect no longer awaits.
    pub(crate) late_answer: bool,
    /// A second put of the anchor is under way.
    pub(crate) late_anchor: bool,
    pub(crate) withdrawal: Withdrawal,
    pub(crate) challengers: [Challenger; MOST],
}

/// The suspect stops allowing challenges, and leads by its lease alone.
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

    /// The suspect's lease is revoked, or given up: everything under it goes.
    pub(crate) fn revoke(&mut self) {
        self.keys = [false; ELECTIONS];
        self.anchor = Anchor::None;
        self.late_anchor = false;
    }

    /// The next modification revision.
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
