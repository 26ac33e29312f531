//! Converts etcd's answers to what the command shows, and formats it as text for people.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::{CellAlignment, ContentArrangement, Table};
use eldest::{KeptShare, LeaseTime, Member, QueueKind, Session, Version};
use eldest_http::contract::command::{Candidate, KeptPartitions, Kind, Queue};
use eldest_http::contract::{self, millis, unix_ms};
use futures::StreamExt;
use jiff::Timestamp;

use crate::output::one_line;

/// The number of requests about candidates that run at the same time.
pub(crate) const QUESTIONS: usize = 16;
/// Shown in place of an empty value.
const NOTHING: &str = "-";

/// The remaining time of each lease, as far as etcd reports it.
pub(crate) type Leases = HashMap<i64, LeaseTime>;

/// Reads the leases of all members. Leases that cannot be read are left out: the rest is worth showing.
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
                tracing::warn!(error = %error.report(), "the time left of the leases is unknown");
                break;
            }
        }
    }
    leases
}

/// A candidate as the command shows it.
pub(crate) fn candidate(member: &Member, has_turn: bool, leases: &Leases) -> Candidate {
    let time = leases.get(&member.lease_id());
    Candidate {
        member: member.into(),
        has_turn,
        lease_left_ms: time.map(|time| millis(time.left())),
        lease_ttl_ms: time.map(|time| millis(time.granted())),
        challenged_by: None,
        condemned: None,
        partitions: None,
        partition_capacity: None,
    }
}

/// Describes a candidate as a part of a sentence.
pub(crate) fn described(candidate: &Candidate) -> String {
    let member = &candidate.member;
    let place = [&member.address, &member.data_center];
    let place: Vec<&str> = place.into_iter().flatten().map(String::as_str).collect();
    if place.is_empty() {
        return one_line(&member.identity);
    }
    one_line(&format!("{} ({})", member.identity, place.join(", ")))
}

/// Returns the present leader, as a part of a sentence.
pub(crate) fn leads_now(leader: Option<&Candidate>) -> String {
    leader.map_or("nobody leads now".to_owned(), |leader| {
        let token = leader.member.fencing_token;
        format!("{} leads now with token {token}", described(leader))
    })
}

/// Returns how long ago that was by this machine's clock; zero if it is in the future.
pub(crate) fn age(since_unix_ms: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = Duration::from_millis(since_unix_ms);
    now.unwrap_or_default().saturating_sub(since)
}

/// Returns the candidate's row; `says_warmth`: with its warmth; `says_version`: with its version.
fn row(candidate: &Candidate, (says_warmth, says_version): (bool, bool)) -> Vec<String> {
    let member = &candidate.member;
    let text = |text: &Option<String>| text.as_deref().map_or(NOTHING.to_owned(), one_line);
    let mark = if candidate.has_turn { "*" } else { "" };
    let lease = (candidate.lease_left_ms, candidate.lease_ttl_ms);
    let left = match (&member.lease_id, lease) {
        (None, _) => "no lease".to_owned(),
        (_, (Some(left), Some(ttl))) => format!("{}s of {}s", left / 1000, ttl / 1000),
        _ => NOTHING.to_owned(),
    };
    let since = member.since_unix_ms.map(age);
    let mut row = vec![
        format!("{mark}{}", member.rank),
        one_line(&member.identity),
        text(&member.address),
        text(&member.data_center),
        since.map_or(NOTHING.to_owned(), length),
        left,
        member.fencing_token.to_string(),
    ];
    if says_warmth {
        row.push(
            match member.warm {
                Some(true) => "yes",
                Some(false) => "no",
                None => NOTHING,
            }
            .to_owned(),
        );
    }
    if says_version {
        row.push(text(&member.version));
    }
    if let Some(partitions) = &candidate.partitions {
        let capacity = match candidate.partition_capacity {
            Some(capacity) if capacity != 1 => format!(" (capacity {capacity})"),
            _ => String::new(),
        };
        row.push(format!(
            "{}: {}{capacity}",
            partitions.len(),
            ranges(partitions)
        ));
    }
    row
}

/// An election, lock, semaphore, set of partitions or group as the command shows it.
pub(crate) fn queue(queue: &eldest::Queue, leases: &Leases) -> Queue {
    let (kind, capacity, partition_count) = match queue.kind() {
        QueueKind::Semaphore { capacity } => (Kind::Semaphore, Some(capacity), None),
        QueueKind::Partitions { count } => (Kind::Partitions, None, Some(count)),
        QueueKind::Group => (Kind::Group, None, None),
        _ => (Kind::Election, None, None),
    };
    let election = kind == Kind::Election;
    let map = queue.partition_map();
    let of = |member| Candidate {
        partitions: map.map(|map| map.partitions_of(member).collect()),
        partition_capacity: map.map(|_| member.announcement().capacity()),
        ..candidate(member, map.is_none() && queue.has_turn(member), leases)
    };
    let members = map.map_or(queue.roster().members(), |map| map.members());
    let roster = queue.roster();
    Queue {
        name: queue.name().to_owned(),
        kind,
        capacity,
        partition_count,
        leader: roster.leader().filter(|_| election).map(of),
        newest_version: None,
        blocked_by: roster.blocker().filter(|_| election).map(key_of),
        unowned_partitions: map.map(|map| map.unowned().collect()),
        kept_partitions: map.map(|map| map.kept_shares().iter().map(kept).collect()),
        blocked_partitions: map.map(|map| map.blocked().map(|(partition, _)| partition).collect()),
        roster: members.iter().map(of).collect(),
    }
}

fn kept(share: &KeptShare) -> KeptPartitions {
    KeptPartitions {
        identity: share.identity().to_owned(),
        partitions: share.partitions().to_vec(),
    }
}

/// Returns the queue's name, and its kind where that is not plain.
pub(crate) fn title(queue: &Queue) -> String {
    let name = one_line(&queue.name);
    match (queue.capacity, queue.partition_count) {
        (Some(capacity), _) => format!("{name} (semaphore of {capacity})"),
        (_, Some(count)) => format!("{name} ({count} partitions)"),
        _ if queue.kind == Kind::Group => format!("{name} (group)"),
        _ => name,
    }
}

/// Describes the queue's state in a few words.
pub(crate) fn summary(queue: &Queue) -> String {
    if let Some(key) = &queue.blocked_by {
        let key = one_line(key);
        return format!(
            "BLOCKED by the key {key}, which has no lease: nobody can lead until it is deleted"
        );
    }
    let many = |n: usize, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
    let members = queue.roster.len();
    if let Some(unowned) = &queue.unowned_partitions {
        return many(members, "member", "members") + &without_owner(queue, unowned);
    }
    if let Some(capacity) = queue.capacity {
        let held = queue.roster.iter().filter(|one| one.has_turn).count();
        return format!("{held} of {capacity} held, {} waiting", members - held);
    }
    if queue.kind == Kind::Group {
        return many(members, "member", "members");
    }
    let waiting = members.saturating_sub(1);
    if let Some((own, newest)) = held_back(queue) {
        let eldest = one_line(&queue.roster[0].member.identity);
        return format!(
            "{eldest} holds back: version {newest} has led, and {eldest} has {own}, so nobody leads; {waiting} waiting"
        );
    }
    match queue.roster.first() {
        None => "vacant".to_owned(),
        Some(Candidate { member: leader, .. }) => format!(
            "{} leads with token {}{}, {} waiting",
            one_line(&leader.identity),
            leader.fencing_token,
            if leader.serving {
                ""
            } else {
                " (not serving yet)"
            },
            waiting
        ),
    }
}

/// Describes the partitions without an owner; returns nothing if all have one.
fn without_owner(queue: &Queue, unowned: &[u32]) -> String {
    let kept = queue.kept_partitions.as_deref().unwrap_or_default();
    let blocked = queue.blocked_partitions.as_deref().unwrap_or_default();
    let all_kept = kept.iter().flat_map(|one| &one.partitions);
    let explained: BTreeSet<_> = all_kept.chain(blocked).collect();
    let free = unowned.iter().filter(|number| !explained.contains(number));
    let free: Vec<_> = free.copied().collect();
    let mut parts = vec![
        ("nobody's".to_owned(), &free[..]),
        ("BLOCKED by keys without a lease".to_owned(), blocked),
    ];
    let absent = kept.iter().map(|one| {
        let whom = format!("kept for {}, which is absent", one_line(&one.identity));
        (whom, &one.partitions[..])
    });
    parts.extend(absent);
    parts.retain(|(_, numbers)| !numbers.is_empty());
    let written = parts.iter();
    let written: Vec<_> = written
        .map(|(what, numbers)| format!("; {what}: {}", ranges(numbers)))
        .collect();
    written.concat()
}

/// Returns the version of the eldest candidate, and the newer one for which it holds back.
fn held_back(queue: &Queue) -> Option<(Version, Version)> {
    let own: Version = queue
        .leader
        .as_ref()?
        .member
        .version
        .as_ref()?
        .parse()
        .ok()?;
    let newest: Version = queue.newest_version.as_ref()?.parse().ok()?;
    (own < newest).then_some((own, newest))
}

/// Returns for how long its leader leads, by the leader's clock and this machine's; nothing if the leader has not
/// announced that.
pub(crate) fn leads_for(queue: &Queue) -> String {
    let since = queue
        .leader
        .as_ref()
        .and_then(|leader| leader.member.leads_since_unix_ms);
    since.map_or_else(String::new, |since| {
        format!(", leads for {}", length(age(since)))
    })
}

/// Returns the candidates of the election as a table.
pub(crate) fn roster(queue: &Queue) -> String {
    let mut header = vec![
        "RANK",
        "IDENTITY",
        "ADDRESS",
        "DATA CENTRE",
        "AGE",
        "LEASE LEFT",
        "TOKEN",
    ];
    let says_warmth = queue.roster.iter().any(|one| one.member.warm.is_some());
    if says_warmth {
        header.push("WARM");
    }
    let says_version = queue.roster.iter().any(|one| one.member.version.is_some());
    if says_version {
        header.push("VERSION");
    }
    if queue.partition_count.is_some() {
        header.push("PARTITIONS");
    }
    let says = (says_warmth, says_version);
    let rows = queue.roster.iter().map(|one| row(one, says));
    table(&header, rows)
}

/// Formats columns, two blanks apart; numbers are aligned to the right.
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

/// Returns a member's key for people: etcd's keys may be any bytes.
pub(crate) fn key_of(member: &Member) -> String {
    contract::key(member.key())
}

/// Returns the present time as JSON shows it.
pub(crate) fn now_unix_ms() -> u64 {
    unix_ms(SystemTime::now()).unwrap_or_default()
}

/// Formats a time for people as RFC 3339 in UTC; returns nothing for times that no calendar has.
pub(crate) fn written(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).map(Timestamp::from_millisecond);
    time.ok()
        .and_then(Result::ok)
        .map_or(NOTHING.to_owned(), |time| format!("{time:.3}"))
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

/// Formats numbers in rising order, runs of them as `2-5`.
fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let written = runs.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    written.collect::<Vec<_>>().join(",")
}

/// Samples for tests of what is shown.
#[cfg(test)]
pub(crate) mod samples {
    use super::contract::Member;
    use super::{Candidate, Kind, Queue};

    fn candidate(rank: usize, identity: &str) -> Candidate {
        Candidate {
            member: Member {
                rank,
                identity: identity.to_owned(),
                fencing_token: rank as i64,
                lease_id: Some("1f".to_owned()),
                key: format!("eldest/sample/{rank}"),
                address: None,
                data_center: None,
                metadata: std::collections::BTreeMap::new(),
                since_unix_ms: None,
                leads_since_unix_ms: None,
                serving: true,
                warm: None,
                version: None,
            },
            has_turn: rank == 1,
            lease_left_ms: None,
            lease_ttl_ms: None,
            challenged_by: None,
            condemned: None,
            partitions: None,
            partition_capacity: None,
        }
    }

    /// Returns an election with these candidates; their tokens are their ranks.
    pub(crate) fn election(name: &str, identities: &[&str]) -> Queue {
        let members = (1..).zip(identities);
        let roster: Vec<_> = members.map(|(rank, id)| candidate(rank, id)).collect();
        Queue {
            name: name.to_owned(),
            kind: Kind::Election,
            capacity: None,
            partition_count: None,
            leader: roster.first().cloned(),
            newest_version: None,
            blocked_by: None,
            unowned_partitions: None,
            kept_partitions: None,
            blocked_partitions: None,
            roster,
        }
    }

    /// Returns an election without candidates.
    pub(crate) fn vacant(name: &str) -> Queue {
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
    fn capacity_other_than_one_is_shown_beside_the_partitions() {
        let of = |capacity| {
            let member = Candidate {
                partitions: Some(vec![0, 1, 4]),
                partition_capacity: Some(capacity),
                ..samples::election("e", &["a"]).roster.remove(0)
            };
            row(&member, (false, false)).pop()
        };
        assert_eq!(of(1).as_deref(), Some("3: 0-1,4"));
        assert_eq!(of(2).as_deref(), Some("3: 0-1,4 (capacity 2)"));
    }

    #[test]
    fn warmth_has_a_column_if_a_candidate_announces_it() {
        let mut queue = samples::election("e", &["a", "b"]);
        assert!(!roster(&queue).contains("WARM"));
        for (warm, shown) in [(true, "yes"), (false, "no")] {
            queue.roster[1].member.warm = Some(warm);
            let text = roster(&queue);
            let ends: Vec<_> = text
                .lines()
                .map(|line| line.split(' ').next_back())
                .collect();
            assert_eq!(ends, [Some("WARM"), Some("-"), Some(shown)], "{text}");
        }
    }

    #[test]
    fn runs_of_partitions_are_written_short() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn partitions_without_an_owner_are_kept_or_blocked_or_nobodys() {
        let kept = KeptPartitions {
            identity: "node-b".into(),
            partitions: vec![1, 2],
        };
        let shards = |unowned: &[u32], kept: &[KeptPartitions], blocked: &[u32]| {
            summary(&Queue {
                kind: Kind::Partitions,
                partition_count: Some(8),
                unowned_partitions: Some(unowned.to_vec()),
                kept_partitions: Some(kept.to_vec()),
                blocked_partitions: Some(blocked.to_vec()),
                ..samples::election("shards", &["a"])
            })
        };
        assert_eq!(shards(&[], &[], &[]), "1 member");
        assert_eq!(
            shards(&[1, 2], std::slice::from_ref(&kept), &[]),
            "1 member; kept for node-b, which is absent: 1-2"
        );
        assert_eq!(
            shards(&[0, 1, 2, 5], &[kept], &[5]),
            "1 member; nobody's: 0; BLOCKED by keys without a lease: 5; kept for node-b, which is absent: 1-2"
        );
    }

    #[test]
    fn group_has_no_leader_and_no_waiting_member() {
        let group = Queue {
            kind: Kind::Group,
            leader: None,
            ..samples::election("workers", &["a", "b"])
        };
        assert_eq!(title(&group), "workers (group)");
        assert_eq!(summary(&group), "2 members");
    }

    #[test]
    fn columns_are_as_wide_as_their_cells_and_lines_have_no_trailing_blanks() {
        let rows = [["*1", "節点", "-"], ["10", "b", "x"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let text = table(&["RANK", "IDENTITY", "AGE"], rows);
        assert_eq!(
            text,
            "RANK  IDENTITY  AGE\n  *1  節点      -\n  10  b         x"
        );
    }
}
