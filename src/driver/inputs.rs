//! Dispatches what reaches the driver: events of etcd and commands of the handles.

use std::sync::Arc;

use super::event::Event;
use super::{Command, Driver};
use crate::error::Error;
use eldest_core::action::Answer;

impl Driver {
    pub(super) fn event(&mut self, event: Event) {
        let now = self.env.now();
        if let Event::Renewed {
            answer: Answer::Opened,
            ..
        } = event
        {
            self.end_renewal("opened");
        }
        self.io.take(event, &mut self.core, now);
    }

    pub(super) fn command(&mut self, command: Command) {
        let now = self.env.now();
        match command {
            Command::Connected => self.core.connected(),
            Command::KeepLease => self.core.always_keep_lease(now),
            Command::Campaign {
                slot,
                value,
                config,
                mut candidate,
            } => {
                candidate.announcing.begin_with(&value);
                let prefix = Arc::clone(&candidate.prefix);
                // A semaphore's permits and the readers of a shared lock have keys of their own.
                if config.permit.is_none() && config.shared.is_none() {
                    if self
                        .standing
                        .get(&prefix)
                        .is_some_and(|other| self.core.is_candidate(*other))
                    {
                        let error = Error::already_campaigning(&candidate.election);
                        candidate.refused(error);
                        return;
                    }
                    self.standing.insert(Arc::clone(&prefix), slot);
                }
                candidate.accepted();
                self.candidates.insert(slot, candidate);
                self.core.campaign(now, slot, prefix, value, config);
            }
            Command::Leave { slot, reason } => self.core.leave(now, slot, reason),
            Command::AwaitEnd { slot, reply } => match self.candidates.get_mut(&slot) {
                Some(candidate) => candidate.await_end(reply),
                None => drop(reply.send(())),
            },
            Command::AwaitRelease { slot, term, reply } => {
                if self.core.await_release(slot, term) {
                    let _ = reply.send(());
                } else {
                    self.releases.wait(slot, term, reply);
                }
            }
            Command::HoldBack { slot, held } => self.core.hold_back(now, slot, held),
            Command::End { slot, term, reason } => {
                self.core.end_by_leader(now, slot, term, reason);
            }
            Command::Joined { slot, term } => self.core.work_joined(now, slot, term),
            Command::Proclaim { slot, value, reply } => {
                let candidate = self.candidates.get_mut(&slot);
                let value = match candidate {
                    Some(candidate) => candidate.announcing.replace(value),
                    None => value,
                };
                self.proclaim(slot, value, reply);
            }
            Command::Close { reply } => {
                self.closers.push(reply);
                self.core.close(now);
            }
        }
    }
}
