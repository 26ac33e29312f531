//! Dispatches what reaches the driver: events of etcd and commands of the handles.

use std::sync::Arc;

use super::event::Event;
use super::{Command, Driver};
use crate::error::Error;
use eldest_core::reason::EndReason;

impl Driver {
    pub(super) fn event(&mut self, event: Event) {
        let now = self.env.now();
        self.io.take(event, &mut self.machine, now);
    }

    pub(super) fn command(&mut self, command: Command) {
        let now = self.env.now();
        match command {
            Command::Connected => self.machine.connected(),
            Command::Campaign {
                slot,
                value,
                manner,
                candidate,
            } => {
                let prefix = Arc::clone(&candidate.prefix);
                // A semaphore's permits have keys of their own.
                if manner.share.is_none() {
                    if self
                        .standing
                        .get(&prefix)
                        .is_some_and(|other| self.machine.stands(*other))
                    {
                        let error = Error::already_campaigning(&candidate.election);
                        candidate.refused(error);
                        return;
                    }
                    self.standing.insert(Arc::clone(&prefix), slot);
                }
                candidate.accepted();
                self.candidates.insert(slot, candidate);
                self.machine.campaign(now, slot, prefix, value, manner);
            }
            Command::Leave { slot } => self.machine.leave(now, slot, EndReason::Left),
            Command::AwaitEnd { slot, reply } => match self.candidates.get_mut(&slot) {
                Some(candidate) => candidate.await_end(reply),
                None => drop(reply.send(())),
            },
            Command::AwaitRelease { slot, term, reply } => self.releases.push((slot, term, reply)),
            Command::HoldBack { slot, held } => self.machine.hold_back(now, slot, held),
            Command::End { slot, term, reason } => {
                self.machine.end_by_leader(now, slot, term, reason);
            }
            Command::Joined { slot, term } => self.machine.work_joined(now, slot, term),
            Command::Proclaim { slot, value, reply } => {
                self.tickets += 1;
                self.proclaims.insert(self.tickets, reply);
                self.machine.proclaim(slot, value, self.tickets);
            }
            Command::Close { reply } => {
                self.closers.push(reply);
                self.machine.close(now);
            }
        }
    }
}
