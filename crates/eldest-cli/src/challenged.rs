//! Shows which sessions are challenged or condemned, from the keys of challenges in etcd.

use std::collections::HashMap;

use eldest::operator::{Anchors, anchors};
use eldest::{ErrorKind, Result, Session};
use eldest_http::contract::command::{Candidate, Challenger, Queue};
use eldest_http::contract::lease_id;

use crate::output::one_line;

/// Reads the challenges that stand. Returns `None` if this user may not read them.
pub(crate) async fn read_if_permitted(session: &Session) -> Result<Option<Anchors>> {
    match anchors(session).await {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(None),
        anchors => anchors.map(Some),
    }
}

/// Adds to each candidate who challenges its session, and whether it was condemned. `read` are the same queues.
pub(crate) fn fill(queues: &mut [Queue], read: &[eldest::Queue], anchors: &Anchors) {
    let members = || {
        let each = read.iter();
        each.flat_map(|queue| {
            let map = queue.partition_map();
            map.map_or(queue.roster().members(), |map| map.members())
        })
    };
    let names: HashMap<i64, &str> = members()
        .map(|member| (member.lease_id(), member.identity()))
        .collect();
    let challenger = |lease: &i64| {
        Some(Challenger {
            identity: names.get(lease).map(|name| (*name).to_owned()),
            lease_id: lease_id(*lease)?,
        })
    };
    let states: HashMap<String, (Vec<Challenger>, bool)> = members()
        .filter_map(|member| {
            let (by, condemned) = anchors.of(member)?;
            let by = by.iter().filter_map(challenger).collect();
            Some((eldest_http::contract::key(member.key()), (by, condemned)))
        })
        .collect();
    for queue in queues {
        for candidate in queue.roster.iter_mut().chain(&mut queue.leader) {
            if let Some((by, condemned)) = states.get(&candidate.member.key) {
                candidate.challenged_by = Some(by.clone());
                candidate.condemned = Some(*condemned);
            }
        }
    }
}

/// Describes the candidates of the queue that are challenged or condemned, each in a line that begins with a line break.
pub(crate) fn described(queue: &Queue) -> String {
    queue.roster.iter().filter_map(line).collect()
}

fn line(candidate: &Candidate) -> Option<String> {
    let name = &candidate.member.identity;
    let by = candidate.challenged_by.as_deref().unwrap_or_default();
    let state = if candidate.condemned == Some(true) {
        "CONDEMNED: it did not answer a challenge, and its key is being deleted".to_owned()
    } else if by.is_empty() {
        return None;
    } else {
        let name = |one: &Challenger| match &one.identity {
            Some(name) => name.clone(),
            None => format!("lease {}", one.lease_id),
        };
        let names: Vec<String> = by.iter().map(name).collect();
        format!(
            "CHALLENGED by {}: it loses its place unless it answers",
            names.join(", ")
        )
    };
    Some(format!("\n{}", one_line(&format!("{name} is {state}"))))
}
