//! Lists the rules of challenges that the model obeys; each can be switched off to show its purpose.

use std::fmt;
use std::str::FromStr;

use crate::rules::named;

/// A rule of challenges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A clean read counts from the instant before it was sent, not from when its answer arrived.
    ReadFromSending,
    /// A read that shows a challenge does not permit the suspect to lead.
    CleanOnly,
    /// Clean reads are linearizable.
    Linearizable,
    /// A clean read shows the anchor with the create revision that the session knows.
    AnchorRevision,
    /// The answer to challenges compares the anchor's create revision.
    AnswerCompares,
    /// A challenger counts from the arrival of the answer that showed its challenge, not from the request's sending.
    CountFromArrival,
    /// A challenger waits for as long as a clean read lets the suspect lead.
    FullWait,
    /// A condemnation compares the challenge's modification revision, not only its existence.
    CondemnCompares,
    /// The suspect's lease is revoked only after the condemnation was confirmed.
    RevokeLast,
    /// A session that begins to lead another election needs a clean read for it, too: trust in its lease is not enough.
    PromotionReads,
    /// A session that announced an anchor keeps it for as long as it has candidates.
    AnchorStays,
    /// A session that finds an announced anchor missing deletes that session's key in its own election.
    AbsenceDeletes,
    /// An anchor with another create revision than the announced one counts as missing.
    AbsenceCompares,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 13] = [
        Self::ReadFromSending,
        Self::CleanOnly,
        Self::Linearizable,
        Self::AnchorRevision,
        Self::AnswerCompares,
        Self::CountFromArrival,
        Self::FullWait,
        Self::CondemnCompares,
        Self::RevokeLast,
        Self::PromotionReads,
        Self::AnchorStays,
        Self::AbsenceDeletes,
        Self::AbsenceCompares,
    ];

    /// Returns the rule's name at the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadFromSending => "read-from-sending",
            Self::CleanOnly => "clean-only",
            Self::Linearizable => "linearizable",
            Self::AnchorRevision => "anchor-revision",
            Self::AnswerCompares => "answer-compares",
            Self::CountFromArrival => "count-from-arrival",
            Self::FullWait => "full-wait",
            Self::CondemnCompares => "condemn-compares",
            Self::RevokeLast => "revoke-last",
            Self::PromotionReads => "promotion-reads",
            Self::AnchorStays => "anchor-stays",
            Self::AbsenceDeletes => "absence-deletes",
            Self::AbsenceCompares => "absence-compares",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        named(&Self::ALL, Self::name, name)
    }
}
