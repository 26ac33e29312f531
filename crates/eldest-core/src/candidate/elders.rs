//! Decides of which sessions a candidate needs signs of life: those that it would succeed, or for a member its neighbours.

use super::Candidacy;
use super::phase::Phase;
use crate::kv::Entry;
use crate::partitions::{KeyKind, kind_of_entry};
use crate::queue::{Own, Place, View, is_shared};

/// The number of keys ahead whose sessions a candidate follows: each may need a connection.
const MOST: usize = 64;
/// The number of members that a member follows, and by which it is followed.
const NEIGHBOURS: usize = 2;

/// Returns the keys ahead of the candidate, eldest first, with true for each that should lead: for the candidate that
/// leads next and for the one behind it, and for no other. A member has the keys of two others, so that every member is
/// followed by two. Returns `None` if the view does not show it now.
pub(crate) fn keys_ahead(me: &Candidacy) -> Option<Vec<(&Entry, bool)>> {
    match &me.phase {
        Phase::Joining { .. } => None,
        Phase::Waiting { own } if me.leads() => match me.place(own) {
            Place::Unknown => None,
            Place::Behind(count) => Some(ahead(me, own, count)),
            Place::First | Place::Lost(_) => Some(Vec::new()),
        },
        Phase::Waiting { own } if me.has_neighbours() => neighbours(me, own),
        _ => Some(Vec::new()),
    }
}

fn ahead<'a>(me: &'a Candidacy, own: &Own, count: usize) -> Vec<(&'a Entry, bool)> {
    // Every event of the queue comes here, and no more readers than that are counted.
    if count > MOST.max(me.capacity()) + 1 {
        return Vec::new();
    }
    let keys = me.view.ahead(own, MOST);
    let readers = keys.iter().take_while(|entry| is_shared(&entry.key));
    let leaders = readers.count().max(me.capacity());
    if count > leaders + 1 {
        return Vec::new();
    }
    let keys = keys.into_iter().enumerate();
    keys.map(|(at, entry)| (entry, at < leaders)).collect()
}

/// Returns the keys of the two members before this one, in the order of their seniority; the youngest come before the
/// eldest.
fn neighbours<'a>(me: &'a Candidacy, own: &Own) -> Option<Vec<(&'a Entry, bool)>> {
    let View::Prefix(view) = &me.view else {
        // In a large group, all but the two eldest members follow the two before them.
        let before = me.view.ahead(own, NEIGHBOURS).into_iter();
        return Some(before.map(|entry| (entry, false)).collect());
    };
    let is_member = |entry: &&Entry| {
        let kind = || kind_of_entry(&me.prefix, entry);
        !me.is_member() || matches!(kind(), Some(KeyKind::Member { .. }))
    };
    let members: Vec<_> = view.roster().in_order().filter(is_member).collect();
    let at = members.iter().position(|entry| own.is(entry))?;
    let before = members[..at].iter().rev();
    let others = before.chain(members[at + 1..].iter().rev());
    Some(
        others
            .take(NEIGHBOURS)
            .map(|entry| (*entry, false))
            .collect(),
    )
}
