//! Implements `eldest watch`: reports the changes between two rosters, and how long no candidate led.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use eldest::operator::announce_the_same;
use eldest::{Member, Roster};
use eldest_http::contract::command::{Change, Event};
use eldest_http::contract::millis;

use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format, one_line};
use crate::stop::Stop;
use crate::view::{self, Leases};

/// Show the candidates of an election, then each change as it happens
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show the candidates of an election, then each change as it happens.\n\n\
    It ends with Ctrl-C, or when the reader of its output has gone. As JSON, each line is an object with `now_unix_ms`, \
    `election`, `revision`, `event` (standing, joined, announced, warm, cold, serving, left, leader, vacant, blocked), `candidate` and, for a \
    leader after a vacancy, `vacant_for_ms`: how long this command saw no leader. A leader that died leaves no vacancy if \
    others wait: its key exists until its lease expires, and then the next candidate leads at once.",
    after_help = "Examples:
  # Follow an election
  eldest watch billing/scheduler
  # Feed the changes to a program, one JSON object per line
  eldest watch billing/scheduler --output json"
)]
pub(crate) struct Args {
    /// The name of the election or lock
    election: String,
}

const fn verb(event: Event) -> &'static str {
    match event {
        Event::Standing => "stands",
        Event::Joined => "joined",
        Event::Announced => "announced",
        Event::Warm => "warm",
        Event::Cold => "cold",
        Event::Serving => "serves",
        Event::Left => "left",
        Event::Leader => "leads",
        Event::Vacant => "vacant",
        Event::Blocked => "blocked",
    }
}

/// Formats a change for people.
fn text(change: &Change) -> String {
    let time = view::written(change.now_unix_ms);
    let who = change.candidate.as_ref().map_or(String::new(), |who| {
        let (described, member) = (view::described(who), &who.member);
        match change.event {
            Event::Leader => {
                let yet = if member.serving {
                    ""
                } else {
                    " (not serving yet)"
                };
                format!("{described} with token {}{yet}", member.fencing_token)
            }
            Event::Left | Event::Vacant | Event::Serving => described,
            Event::Blocked => {
                format!("by the key {}, which has no lease", one_line(&member.key))
            }
            Event::Standing | Event::Joined | Event::Announced | Event::Warm | Event::Cold => {
                format!("{described} at rank {}", member.rank)
            }
        }
    });
    let vacant = change.vacant_for_ms.map_or(String::new(), |ms| {
        format!("; nobody led for {}.{:03} s", ms / 1000, ms % 1000)
    });
    let line = format!("{time}  {:9}  {who}{vacant}", verb(change.event));
    line.trim_end().to_owned()
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.observer().await?;
    let election = session.election(&args.election)?;
    let mut changes = election.observe().await?;
    let mut log = Log::new(args.election);
    let mut stop = Stop::new()?;
    let mut gone = std::pin::pin!(output::reader_gone());
    loop {
        let roster = tokio::select! {
            roster = changes.next() => roster,
            () = stop.asked() => return Ok(Code::Done),
            () = &mut gone => return Ok(Code::Done),
        };
        let Some(roster) = roster else {
            anyhow::bail!("the session ended");
        };
        for change in log.of(roster?, Instant::now()) {
            match global.output {
                Format::Text => output::say(text(&change))?,
                Format::Json => output::say_json(&change)?,
            }
        }
    }
}

/// The last roster seen.
struct Log {
    election: String,
    last: Option<Roster>,
    /// The time since when no candidate has been seen to lead.
    vacant_since: Option<Instant>,
}

impl Log {
    fn new(election: String) -> Self {
        Self {
            election,
            last: None,
            vacant_since: None,
        }
    }

    /// Returns the changes: arrivals, changed metadata, departures, and then the leader.
    fn of(&mut self, now: Roster, at: Instant) -> Vec<Change> {
        let first = self.last.is_none();
        let before: BTreeMap<i64, Member> = self
            .last
            .iter()
            .flat_map(Roster::members)
            .map(|member| (id(member), member.clone()))
            .collect();
        let front = |roster: &Roster| roster.members().first().map(id);
        let leader_stays = !first && self.last.as_ref().and_then(front) == front(&now);
        let mut changes = Vec::new();
        let mut record = |event, who: Option<&Member>, vacant_for_ms| {
            let has_turn = now.leader() == who;
            changes.push(Change {
                now_unix_ms: view::now_unix_ms(),
                election: self.election.clone(),
                revision: now.revision(),
                event,
                candidate: who.map(|who| view::candidate(who, has_turn, &Leases::new())),
                vacant_for_ms,
            });
        };
        for member in now.members() {
            match before.get(&id(member)) {
                None if first => record(Event::Standing, Some(member), None),
                None => record(Event::Joined, Some(member), None),
                Some(old) => {
                    for event in news(old, member, leader_stays) {
                        record(event, Some(member), None);
                    }
                }
            }
        }
        for (id_of, old) in &before {
            if !now.members().iter().any(|member| id(member) == *id_of) {
                record(Event::Left, Some(old), None);
            }
        }
        if !leader_stays {
            if let Some(leader) = now.leader() {
                let since = self.vacant_since.take();
                let vacant = since.map(|since| millis(at - since));
                record(Event::Leader, Some(leader), vacant);
            } else {
                self.vacant_since.get_or_insert(at);
                match now.blocker() {
                    Some(blocker) => record(Event::Blocked, Some(blocker), None),
                    None => record(Event::Vacant, None, None),
                }
            }
        }
        self.last = Some(now);
        changes
    }
}

/// Returns what a candidate has announced since. Whether a new leader serves is part of the event that it leads.
fn news(before: &Member, now: &Member, leader_stays: bool) -> impl Iterator<Item = Event> {
    let announced = (!announce_the_same(before, now)).then_some(Event::Announced);
    let warmth = match (before.warmth(), now.warmth()) {
        (Some(false), Some(true)) => Some(Event::Warm),
        (Some(true), Some(false)) => Some(Event::Cold),
        _ => None,
    };
    let serves = leader_stays && !before.is_serving() && now.is_serving();
    let serves = serves.then_some(Event::Serving);
    [announced, warmth, serves].into_iter().flatten()
}

/// Identifies a candidate while its key exists. Two keys of one transaction would share it: no node of ours creates such.
fn id(member: &Member) -> i64 {
    member.create_revision()
}
