//! Formats paths for people.

use std::fmt::{self, Write as _};

use stateright::Path;

use super::state::{Anchor, ELECTIONS};
use super::{Action, State};

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, number) = match *self {
            Self::Tick => ("a tick passes", None),
            Self::Read(n) => ("the suspect sends a clean read", Some(n)),
            Self::Answer(n) => ("the suspect answers all challenges", Some(n)),
            Self::Serve(n) => ("etcd serves the suspect's request", Some(n)),
            Self::ServeStale(n) => ("a member that is behind serves the read", Some(n)),
            Self::Arrive(n) => ("the suspect gets the answer to its request", Some(n)),
            Self::Lose(n) => ("the suspect gives its request up", Some(n)),
            Self::AnswerAppliedLate => ("etcd applies an answer that nobody awaits", None),
            Self::AnchorPutAgain => ("etcd applies a second put of the anchor", None),
            Self::NoLongerBehind => ("the one before the suspect leaves election 1", None),
            Self::Promote => ("the suspect leads election 1", None),
            Self::Withdraw => ("the suspect deletes its anchor", None),
            Self::ServeWithdrawal => ("etcd applies that", None),
            Self::Withdrawn => ("the suspect leads by its lease alone", None),
            Self::Challenge(n) => ("a challenge is sent by challenger", Some(n)),
            Self::ServeChallenge(n) => ("etcd applies the challenge of challenger", Some(n)),
            Self::GiveUpChallenge(n) => ("no answer reaches challenger", Some(n)),
            Self::ChallengeAppliedLate(n) => {
                ("etcd applies late a challenge of challenger", Some(n))
            }
            Self::Count(n) => ("the count begins of challenger", Some(n)),
            Self::Forget(n) => ("the suspicion ends of challenger", Some(n)),
            Self::Condemn(n) => ("a condemnation is sent by challenger", Some(n)),
            Self::ServeCondemnation(n) => ("etcd serves the condemnation of challenger", Some(n)),
            Self::Condemned(n) => ("the condemnation is confirmed to challenger", Some(n)),
            Self::CondemnedUnheard(n) => ("the confirmation does not reach challenger", Some(n)),
            Self::Revoke(n) => ("etcd revokes the suspect's lease for challenger", Some(n)),
            Self::DeleteByAbsence(n) => (
                "the key of an absent anchor is deleted by challenger",
                Some(n),
            ),
            Self::Die(n) => ("death of challenger", Some(n)),
        };
        f.write_str(what)?;
        number.map_or(Ok(()), |number| write!(f, " {number}"))
    }
}

/// Describes a path: after each step, how long the suspect may lead and which keys etcd has.
pub(crate) fn describe_path(path: Path<State, Action>) -> String {
    let mut text = String::new();
    let mut action: Option<Action> = None;
    for (number, (state, next)) in path.into_vec().into_iter().enumerate() {
        let step = action.map_or_else(
            || "the suspect leads election 0".to_owned(),
            |a| a.to_string(),
        );
        let anchor = match state.anchor {
            Anchor::Announced => "the anchor",
            Anchor::PutAgain => "another anchor",
            Anchor::None => "no anchor",
        };
        let keys = (0..ELECTIONS).filter(|n| state.keys[*n]);
        let keys: Vec<_> = keys.map(|n| n.to_string()).collect();
        let _ = writeln!(
            text,
            "{number:>3}  {step:<58} may lead for {}; in etcd {anchor}, keys {}, challenges {:?}",
            state.belief,
            keys.join(" "),
            state.challenges
        );
        action = next;
    }
    text
}
