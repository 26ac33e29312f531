//! Formats candidates, elections and times, as text for people and as JSON for programs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, ContentArrangement, Table};
use eldest::{LeaseTime, Member, Queue, QueueKind, Session};
use futures::StreamExt;
use jiff::Timestamp;
use serde::Serialize;

use crate::output::one_line;

/// Questions about leases that are under way at once.
const QUESTIONS: usize = 16;
/// Shown where there is nothing to show.
const NOTHING: &str = "-";

/// How much is left of each lease, as far as etcd says it.
pub(crate) type Leases = HashMap<i64, LeaseTime>;

/// Asks for the leases of all members. What cannot be had is left out: the rest is worth showing.
pub(crate) async fn leases<'a>(
    session: &Session,
    members: impl IntoIterator<Item = &'a Member>,
) -> Leases {
    let ids: BTreeSet<i64> = members.into_iter().map(Member::lease_id).collect();
    let ids = ids.into_iter().filter(|id| *id != 0);
    let asked = ids.map(async |id| (id, session.lease_time(id).await));
    let mut answers = futures::stream::iter(asked).buffer_unordered(QUESTIONS);
    let mut leases = Leases::new();
    while let Some((id, answer)) = answers.next().await {
        match answer {
            Ok(time) => leases.extend(time.map(|time| (id, time))),
            Err(error) => {
                tracing::warn!(%error, "what is left of the leases is not known");
                break;
            }
        }
    }
    leases
}

/// One candidate.
#[derive(Debug, Serialize)]
pub(crate) struct Candidate {
    pub(crate) rank: usize,
    /// Leads, or holds what the others wait for.
    has_turn: bool,
    pub(crate) identity: String,
    address: Option<String>,
    data_center: Option<String>,
    metadata: BTreeMap<String, String>,
    /// By the candidate's own clock, if it said so.
    since: Option<String>,
    age_seconds: Option<u64>,
    /// In hexadecimal, as etcd's tools write it; nothing if the key has none.
    lease: Option<String>,
    lease_left_seconds: Option<u64>,
    lease_ttl_seconds: Option<u64>,
    pub(crate) token: i64,
    pub(crate) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<Vec<u32>>,
}

impl Candidate {
    pub(crate) fn new(member: &Member, has_turn: bool, leases: &Leases) -> Self {
        let announcement = member.announcement();
        let metadata = announcement.iter_metadata();
        let time = leases.get(&member.lease_id());
        Self {
            rank: member.rank(),
            has_turn,
            identity: member.identity().to_owned(),
            address: announcement.get_address().map(str::to_owned),
            data_center: announcement.get_data_center().map(str::to_owned),
            metadata: metadata
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            since: member.since().and_then(written),
            age_seconds: member.since().map(|since| age(since).as_secs()),
            lease: (member.lease_id() != 0).then(|| format!("{:x}", member.lease_id())),
            lease_left_seconds: time.map(|time| time.left().as_secs()),
            lease_ttl_seconds: time.map(|time| time.granted().as_secs()),
            token: member.create_revision(),
            key: key(member),
            partitions: None,
        }
    }

    /// A part of a sentence.
    pub(crate) fn described(&self) -> String {
        let place = [&self.address, &self.data_center];
        let place: Vec<&str> = place.into_iter().flatten().map(String::as_str).collect();
        if place.is_empty() {
            return one_line(&self.identity);
        }
        one_line(&format!("{} ({})", self.identity, place.join(", ")))
    }

    fn row(&self) -> Vec<String> {
        let text = |text: &Option<String>| text.as_deref().map_or(NOTHING.to_owned(), one_line);
        let mark = if self.has_turn { "*" } else { "" };
        let left = match (&self.lease, self.lease_left_seconds, self.lease_ttl_seconds) {
            (None, _, _) => "no lease".to_owned(),
            (_, Some(left), Some(ttl)) => format!("{left}s of {ttl}s"),
            _ => NOTHING.to_owned(),
        };
        let mut row = vec![
            format!("{mark}{}", self.rank),
            one_line(&self.identity),
            text(&self.address),
            text(&self.data_center),
            self.age_seconds.map_or(NOTHING.to_owned(), |seconds| {
                length(Duration::from_secs(seconds))
            }),
            left,
            self.token.to_string(),
        ];
        if let Some(partitions) = &self.partitions {
            row.push(format!("{}: {}", partitions.len(), ranges(partitions)));
        }
        row
    }
}

/// One election, lock, semaphore or set of partitions.
#[derive(Debug, Serialize)]
pub(crate) struct Standing {
    pub(crate) name: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    /// Who leads; of a semaphore, nobody does.
    pub(crate) leader: Option<String>,
    pub(crate) token: Option<i64>,
    /// A key without a lease: nobody can lead until somebody deletes it.
    blocked_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unowned: Option<Vec<u32>>,
    /// Partitions where a key without a lease stands in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<Vec<u32>>,
    pub(crate) members: Vec<Candidate>,
}

impl Standing {
    pub(crate) fn new(queue: &Queue, leases: &Leases) -> Self {
        let (kind, capacity, count) = match queue.kind() {
            QueueKind::Semaphore { capacity } => ("semaphore", Some(capacity), None),
            QueueKind::Partitions { count } => ("partitions", None, Some(count)),
            _ => ("election", None, None),
        };
        let election = queue.kind() == QueueKind::Election;
        let leader = queue.roster().leader().filter(|_| election);
        let members = match queue.partition_map() {
            None => {
                let members = queue.roster().members().iter();
                let candidate = |m| Candidate::new(m, queue.has_turn(m), leases);
                members.map(candidate).collect()
            }
            Some(map) => {
                let members = map.members().iter();
                let owner = |m| Candidate {
                    partitions: Some(map.partitions_of(m).collect()),
                    ..Candidate::new(m, false, leases)
                };
                members.map(owner).collect()
            }
        };
        let blocker = queue.roster().blocker().filter(|_| election);
        Self {
            name: queue.name().to_owned(),
            kind,
            capacity,
            count,
            leader: leader.map(|leader| leader.identity().to_owned()),
            token: leader.map(Member::create_revision),
            blocked_by: blocker.map(key),
            unowned: queue.partition_map().map(|map| map.unowned().collect()),
            blocked: (queue.partition_map())
                .map(|map| map.blocked().map(|(partition, _)| partition).collect()),
            members,
        }
    }

    /// Its name, and what it is where that is not plain.
    pub(crate) fn title(&self) -> String {
        let name = one_line(&self.name);
        match (self.capacity, self.count) {
            (Some(capacity), _) => format!("{name} (semaphore of {capacity})"),
            (_, Some(count)) => format!("{name} ({count} partitions)"),
            _ => name,
        }
    }

    /// How it stands, in a few words.
    pub(crate) fn summary(&self) -> String {
        if let Some(key) = &self.blocked_by {
            let key = one_line(key);
            return format!(
                "BLOCKED by the key {key}, which has no lease: nobody leads until it is deleted"
            );
        }
        let many =
            |n: usize, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
        let members = self.members.len();
        if let Some(unowned) = &self.unowned {
            let shared = many(members, "member", "members");
            let free = match &unowned[..] {
                [] => String::new(),
                some => format!("; nobody's: {}", ranges(some)),
            };
            let blocked = match self.blocked.as_deref() {
                None | Some([]) => String::new(),
                Some(some) => format!("; BLOCKED by keys without a lease: {}", ranges(some)),
            };
            return format!("{shared}{free}{blocked}");
        }
        if let Some(capacity) = self.capacity {
            let held = self.members.iter().filter(|member| member.has_turn).count();
            return format!("{held} of {capacity} held, {} waiting", members - held);
        }
        match self.members.first() {
            None => "vacant".to_owned(),
            Some(leader) => format!(
                "{} leads with token {}, {} waiting",
                one_line(&leader.identity),
                leader.token,
                members - 1
            ),
        }
    }

    /// The members as a table.
    pub(crate) fn table(&self) -> String {
        let mut header = vec![
            "RANK",
            "IDENTITY",
            "ADDRESS",
            "DATA CENTRE",
            "AGE",
            "LEASE LEFT",
            "TOKEN",
        ];
        if self.count.is_some() {
            header.push("PARTITIONS");
        }
        table(&header, self.members.iter().map(Candidate::row))
    }
}

/// Columns, two blanks apart; numbers to the right.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_preset(comfy_table::presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for (column, name) in table.column_iter_mut().zip(header) {
        column.set_padding((0, 2));
        if ["RANK", "TOKEN"].contains(name) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// A key for people: etcd's may be any bytes.
pub(crate) fn key(member: &Member) -> String {
    String::from_utf8_lossy(member.key()).into_owned()
}

/// How long ago, by this machine's clock; nothing if that is before.
fn age(since: SystemTime) -> Duration {
    SystemTime::now().duration_since(since).unwrap_or_default()
}

/// RFC 3339, in UTC. `None`: outside of what calendars have.
pub(crate) fn written(time: SystemTime) -> Option<String> {
    let time = Timestamp::try_from(time).ok()?;
    Some(format!("{time:.3}"))
}

/// A length of time by its two largest units, such as `3m12s`.
pub(crate) fn length(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if days > 0 {
        format!("{days}d{}h", hours % 24)
    } else if hours > 0 {
        format!("{hours}h{}m", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes}m{}s", seconds % 60)
    } else {
        format!("{seconds}s")
    }
}

/// Numbers in rising order, runs of them as `2-5`.
fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let written = runs.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    written.collect::<Vec<_>>().join(",")
}

/// For tests of what is shown.
#[cfg(test)]
pub(crate) mod samples {
    use super::{Candidate, Standing};

    fn candidate(rank: usize, identity: &str) -> Candidate {
        Candidate {
            rank,
            has_turn: rank == 1,
            identity: identity.to_owned(),
            address: None,
            data_center: None,
            metadata: super::BTreeMap::new(),
            since: None,
            age_seconds: None,
            lease: Some("1f".to_owned()),
            lease_left_seconds: None,
            lease_ttl_seconds: None,
            token: rank as i64,
            key: format!("eldest/sample/{rank}"),
            partitions: None,
        }
    }

    /// An election with these candidates; their tokens are their ranks.
    pub(crate) fn election(name: &str, identities: &[&str]) -> Standing {
        let members = (1..).zip(identities);
        Standing {
            name: name.to_owned(),
            kind: "election",
            capacity: None,
            count: None,
            leader: identities.first().map(|leader| (*leader).to_owned()),
            token: identities.first().map(|_| 1),
            blocked_by: None,
            unowned: None,
            blocked: None,
            members: members.map(|(rank, id)| candidate(rank, id)).collect(),
        }
    }

    /// One that nobody stands in.
    pub(crate) fn vacant(name: &str) -> Standing {
        election(name, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_have_two_units_at_most() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (192, "3m12s"),
            (7_500, "2h5m"),
            (270_000, "3d3h"),
        ] {
            assert_eq!(length(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn runs_of_partitions_are_written_short() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them_and_lines_end_where_they_end() {
        let rows = [["*1", "節点", "-"], ["10", "b", "x"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let text = table(&["RANK", "IDENTITY", "AGE"], rows);
        assert_eq!(
            text,
            "RANK  IDENTITY  AGE\n  *1  節点      -\n  10  b         x"
        );
    }
}
