//! Describes each event of a run in one line for people, if a trace is wanted.

use std::time::Duration;

use super::World;
use super::message::Message;
use super::step::Step;
use eldest_core::action::{
    Action, Answer, Ask, CandidateAction, Join, Joined, Listed, Note, RequestId,
};
use eldest_core::kv::{Change, Entry};
use eldest_core::time::Time;
use eldest_core::txn::{Op, Transacted, Txn, When};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn keys<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> String {
    let key = |e: &Entry| format!("{}@{}", text(&e.key), e.create_revision);
    let all: Vec<_> = entries.into_iter().map(key).collect();
    all.join(" ")
}

fn change(change: &Change) -> String {
    match change {
        Change::Put(e) => format!(
            "put {}@{} lease {:x}",
            text(&e.key),
            e.create_revision,
            e.lease
        ),
        Change::Delete { key, revision } => format!("{} deleted at {revision}", text(key)),
    }
}

pub(super) fn ask(ask: &Ask) -> String {
    match ask {
        Ask::Grant { .. } => "grant".to_owned(),
        Ask::Open { lease } => format!("open the keepalive of {lease:x}"),
        Ask::Renew => "renew".to_owned(),
        Ask::Verify { key } => format!("verify by {}", text(key)),
        Ask::Check { keys } => format!("check {} keys", keys.len()),
        Ask::Probe { key } => format!("probe by {}", text(key)),
        Ask::Join(Join { key, .. }) => format!("join as {}", text(key)),
        Ask::List { prefix, .. } => format!("list {}", text(prefix)),
        Ask::Older {
            prefix,
            create_revision,
        } => format!("list {} up to {create_revision}", text(prefix)),
        Ask::Find { key } => format!("find {}", text(key)),
        Ask::Delete {
            key,
            create_revision,
            state,
        } => {
            let with = state.as_ref().map(|state| text(&state.value));
            let with = with.map_or(String::new(), |state| format!(" and save {state}"));
            format!("delete {}@{create_revision}{with}", text(key))
        }
        Ask::Release { keys } => format!("release {} keys", keys.len()),
        Ask::Take { keys, .. } => format!("take {} keys", keys.len()),
        Ask::Proclaim { own, value, .. } => {
            format!("proclaim {} as {}", text(&own.key), text(value))
        }
        Ask::Revoke { lease } => format!("revoke {lease:x}"),
        Ask::Sweep { lease } => format!("sweep {lease:x}"),
        Ask::TimeLeft { lease } => format!("read what is left of {lease:x}"),
        Ask::Transact(txn) => transaction(txn),
    }
}

fn transaction(txn: &Txn) -> String {
    let when = txn.when.iter().map(|when| match when {
        When::Created(key, revision) => format!("{} created {revision}", text(key)),
        When::NotCreated(key, revision) => format!("{} not created {revision}", text(key)),
        When::Written(key, revision) => format!("{} written {revision}", text(key)),
    });
    let then = txn.then.iter().map(|op| match op {
        Op::Put { key, .. } => format!("put {}", text(key)),
        Op::Read(key) | Op::ReadBelow(key) => format!("read {}", text(key)),
        Op::Delete(key) | Op::DeleteBelow(key) => format!("delete {}", text(key)),
    });
    let (when, then): (Vec<_>, Vec<_>) = (when.collect(), then.collect());
    format!("if [{}] then {}", when.join(", "), then.join(", "))
}

fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Granted { lease, .. } => format!("granted {lease:x}"),
        Answer::Opened => "open".to_owned(),
        Answer::Renewed { ttl, header } => {
            format!("acknowledged for {ttl:?} in raft term {}", header.term)
        }
        Answer::Read { header, entry } => {
            let entry = entry.as_ref();
            let entry = entry.map_or("nothing".to_owned(), |e| keys([e]));
            let (term, revision) = (header.term, header.revision);
            format!("{entry}, in raft term {term} at {revision}")
        }
        Answer::Joined(Joined {
            header,
            created,
            entries,
            ..
        }) => {
            let how = if *created { "created" } else { "not created" };
            format!("{how} at {}: {}", header.revision, keys(entries))
        }
        Answer::Listed(Listed { header, entries }) => {
            format!("at {}: {}", header.revision, keys(entries))
        }
        Answer::Deleted { .. } => "deleted".to_owned(),
        Answer::Taken { .. } => "taken".to_owned(),
        Answer::Checked { entries, .. } => {
            let stand = entries.iter().flatten().count();
            format!("{stand} of {} keys stand", entries.len())
        }
        Answer::Proclaimed { held, .. } => format!("proclaimed: {}", held.is_some()),
        Answer::Revoked => "revoked".to_owned(),
        Answer::Swept { keys } => format!("{} keys", keys.len()),
        Answer::TimeLeft { left, .. } => format!("{left:?} left"),
        Answer::Transacted(Transacted {
            header,
            held,
            found,
        }) => {
            let found: Vec<_> = found.iter().map(keys).collect();
            format!("held: {held}, at {}: {}", header.revision, found.join("; "))
        }
        Answer::Failed(error) if error.ambiguous => "no answer in time".to_owned(),
        Answer::Failed(error) => format!("refused: {:?}", error.class),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}

impl World {
    /// Converts an instant of a node's clock to the world's.
    fn instant(&self, node: usize, local: Time) -> String {
        if local >= Time::MAX {
            return "ever".to_owned();
        }
        seconds(self.nodes[node].world(local).since(Time::ZERO))
    }

    pub(super) fn says_ask(&mut self, node: usize, request: RequestId, what: &Ask) {
        self.says(Some(node), || format!("asks #{request}: {}", ask(what)));
        if let Some(line) = self.trace.as_mut().and_then(|trace| trace.last_mut()) {
            line.asks = true;
            line.step = Step::of(what);
        }
    }

    pub(super) fn says_answer(&mut self, node: usize, request: RequestId, what: &Answer) {
        self.says(Some(node), || {
            format!("receives #{request}: {}", answer(what))
        });
    }

    pub(super) fn says_message(&mut self, node: usize, message: &Message) {
        self.says(Some(node), || match message {
            Message::Created { id, header } => {
                format!("watch {id} stands since {}", header.revision)
            }
            Message::Events { id, changes, .. } => {
                let changes: Vec<_> = changes.iter().map(change).collect();
                format!("watch {id} tells: {}", changes.join(", "))
            }
            Message::Progress { header } => {
                let (revision, term) = (header.revision, header.term);
                format!("the watches are at {revision}, in raft term {term}")
            }
            Message::Refused { id } => format!("watch {id} is refused"),
            Message::Canceled { id } => format!("watch {id} is cancelled"),
            Message::Broken => "the watch stream breaks".to_owned(),
        });
    }

    pub(super) fn says_change(&mut self, what: &Change) {
        self.says(None, || format!("etcd: {}", change(what)));
    }

    pub(super) fn says_action(&mut self, node: usize, action: &Action) {
        if self.trace.is_none() {
            return;
        }
        let what = match action {
            Action::Trust { deadline, fresh } => {
                let until = self.instant(node, *deadline);
                let again = if *fresh { "again " } else { "" };
                format!("trusts its lease {again}until {until}")
            }
            Action::Distrust => "trusts its lease no longer".to_owned(),
            Action::Lead { deadline, fresh } => {
                let until = self.instant(node, *deadline);
                let again = if *fresh { "again " } else { "" };
                format!("may lead {again}until {until}")
            }
            Action::LeadNoLonger => "may lead no longer".to_owned(),
            Action::Candidate(CandidateAction::Elected { term, token, .. }) => {
                format!("LEADS: term {term}, token {token}")
            }
            Action::Candidate(CandidateAction::TermEnded {
                term,
                reason,
                cutoff,
                valid,
                ..
            }) => {
                let until = self.instant(node, *cutoff);
                let valid = if *valid { "valid" } else { "not valid" };
                format!("term {term} ENDS: {reason}, {valid}, work until {until}")
            }
            Action::Candidate(CandidateAction::Ended { slot, reason, .. }) => {
                format!("candidate {slot} is over: {reason:?}")
            }
            Action::Session(state) => format!("session: {state:?}"),
            Action::Note(Note::RenewalRefused) => "refuses the renewal".to_owned(),
            Action::Note(Note::WatchLost { why }) => format!("watches lost: {why}"),
            Action::Note(Note::OrphanFound { key }) => format!("finds its orphan {}", text(key)),
            Action::HangUp => "drops the keepalive stream".to_owned(),
            Action::Observed {
                revision, entries, ..
            } => {
                let entries = keys(entries.iter().map(|entry| &**entry));
                format!("is shown at {revision}: {entries}")
            }
            Action::ObserveFailed { error, .. } => format!("may not look: {:?}", error.class),
            Action::Left { term, left } => format!("the state of term {term}: {left:?}"),
            Action::Proclaimed { result, .. } => format!("a value is announced: {result:?}"),
            _ => return,
        };
        self.says(Some(node), || what);
    }
}
