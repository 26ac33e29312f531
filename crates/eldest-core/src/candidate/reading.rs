//! Decides which candidates need clean reads: those that lead, those that may lead next, and members that others watch.

use super::Candidacy;
use super::phase::Phase;
use super::seat::Seat;
use crate::queue::Place;

/// Returns true if the candidate leads, works on after its term, may be the next to lead, or is a member that others
/// watch.
pub(crate) fn is_near_lead(me: &Candidacy) -> bool {
    match &me.phase {
        _ if !me.needs_clean_reads() => false,
        // Its work may go on until the cutoff, but not longer than clean reads allow.
        Phase::Ending { own, .. } => own.is_some(),
        Phase::Waiting { own } if me.leads() => match me.place(own) {
            Place::First => true,
            Place::Behind(ahead) => ahead <= me.capacity(),
            Place::Unknown | Place::Lost(_) => false,
        },
        Phase::Leading { .. } | Phase::Waiting { .. } => true,
        // The read is answered together with the join.
        Phase::Joining { request, .. } => request.is_some(),
        Phase::Leaving { .. } => false,
    }
}

impl Seat<'_> {
    /// Makes a clean read due if the candidate needs one: at once if the session could not lead now.
    pub(super) fn want_clean_read(&mut self) {
        if self.challenges.are_allowed() && is_near_lead(self.me) {
            let at_once =
                self.lease.deadlines().leads_until().is_none() && self.challenges.reads.is_idle();
            self.challenges.want_read(self.now, at_once, self.out);
        }
    }
}
