//! Implements `eldest watch`: reports the changes between two rosters, and how long no candidate led.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use anyhow::Result;
use eldest::{Member, Roster};
use futures::StreamExt;
use serde::Serialize;

use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format, one_line};
use crate::stop::Stop;
use crate::view::{self, Candidate, Leases};

/// Show the changes of an election as they happen
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show the candidates of an election, then each change as it happens, until Ctrl-C or until nobody \
    reads the output.\n\n\
    As JSON, each line is an object: `time`, `election`, `revision`, `event` (standing, joined, announced, left, leader, \
    vacant, blocked), `who` and, where a leader comes after a vacancy, `vacant_seconds`: how long this command saw \
    nobody lead. A leader that died leaves no vacancy behind if others wait: its key stands until its lease is over, \
    and then the next one leads at once."
)]
pub(crate) struct Args {
    /// The election, or the lock
    election: String,
}

/// A line.
#[derive(Debug, Serialize)]
struct Line {
    time: Option<String>,
    election: String,
    revision: i64,
    event: What,
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<Candidate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vacant_seconds: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum What {
    /// It stood when we began to look.
    Standing,
    Joined,
    Announced,
    Left,
    Leader,
    Vacant,
    Blocked,
}

impl What {
    const fn told(self) -> &'static str {
        match self {
            What::Standing => "stands",
            What::Joined => "joined",
            What::Announced => "announced",
            What::Left => "left",
            What::Leader => "leads",
            What::Vacant => "vacant",
            What::Blocked => "blocked",
        }
    }
}

impl Line {
    /// For people.
    fn text(&self) -> String {
        let time = self.time.as_deref().unwrap_or("-");
        let who = self.who.as_ref().map_or(String::new(), |who| {
            let described = who.described();
            match self.event {
                What::Leader => format!("{described} with token {}", who.token),
                What::Left | What::Vacant => described,
                What::Blocked => format!("by the key {}, which has no lease", one_line(&who.key)),
                What::Standing | What::Joined | What::Announced => {
                    format!("{described} at rank {}", who.rank)
                }
            }
        });
        let vacant = self.vacant_seconds.map_or(String::new(), |seconds| {
            format!("; nobody led for {seconds:.3} s")
        });
        let line = format!("{time}  {:9}  {who}{vacant}", self.event.told());
        line.trim_end().to_owned()
    }
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.onlooker().await?;
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
        for event in log.of(roster?, Instant::now()) {
            match global.output {
                Format::Text => output::say(event.text())?,
                Format::Json => output::say_json(&event)?,
            }
        }
    }
}

/// What was seen last.
struct Log {
    election: String,
    last: Option<Roster>,
    /// Since when we have seen nobody lead.
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

    /// What has changed: who came and what they say, who left, and then who leads.
    fn of(&mut self, now: Roster, at: Instant) -> Vec<Line> {
        let first = self.last.is_none();
        let before: BTreeMap<i64, Member> = self
            .last
            .iter()
            .flat_map(Roster::members)
            .map(|member| (id(member), member.clone()))
            .collect();
        let mut events = Vec::new();
        let mut tell = |event, who: Option<&Member>, vacant_seconds| {
            let has_turn = now.leader() == who;
            events.push(Line {
                time: view::written(SystemTime::now()),
                election: self.election.clone(),
                revision: now.revision(),
                event,
                who: who.map(|who| Candidate::new(who, has_turn, &Leases::new())),
                vacant_seconds,
            });
        };
        for member in now.members() {
            match before.get(&id(member)) {
                None if first => tell(What::Standing, Some(member), None),
                None => tell(What::Joined, Some(member), None),
                Some(old) if old.value() != member.value() => {
                    tell(What::Announced, Some(member), None);
                }
                Some(_) => {}
            }
        }
        for (id_of, old) in &before {
            if !now.members().iter().any(|member| id(member) == *id_of) {
                tell(What::Left, Some(old), None);
            }
        }
        let front = |roster: &Roster| roster.members().first().map(id);
        if first || self.last.as_ref().and_then(front) != front(&now) {
            if let Some(leader) = now.leader() {
                let vacant = self
                    .vacant_since
                    .take()
                    .map(|since| (at - since).as_secs_f64());
                tell(What::Leader, Some(leader), vacant);
            } else {
                self.vacant_since.get_or_insert(at);
                match now.blocker() {
                    Some(blocker) => tell(What::Blocked, Some(blocker), None),
                    None => tell(What::Vacant, None, None),
                }
            }
        }
        self.last = Some(now);
        events
    }
}

/// What stays the same for as long as the candidate's key stands. Two keys of one transaction share it: nobody of ours
/// makes such.
fn id(member: &Member) -> i64 {
    member.create_revision()
}
