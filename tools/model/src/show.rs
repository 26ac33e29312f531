//! Formats the model's steps, states and paths for people.

use std::fmt::{self, Write as _};

use stateright::Path;

use crate::model::{Action, Model};
use crate::state::{Link, Node, Phase, Removal, State};

const NODES: [char; 3] = ['a', 'b', 'c'];

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, what) = match *self {
            Self::Tick => return f.write_str("a tick passes"),
            Self::Elect => return f.write_str("etcd elects another leader"),
            Self::TickSlow(n) => (n, "a tick passes that its clock does not count"),
            Self::TickFast(n) => (n, "a tick passes that its clock counts twice"),
            Self::Expire(n) => (n, "etcd revokes its lease, which has expired"),
            Self::RevokeEarly(n) => (n, "etcd revokes its lease, which has not expired"),
            Self::Campaign(n) => (n, "is granted a lease"),
            Self::Renew(n) => (n, "sends a renewal"),
            Self::Acknowledge(n) => (n, "its renewal is processed by etcd's leader"),
            Self::AcknowledgeStale(n) => (n, "its renewal is acknowledged by a deposed leader"),
            Self::Acknowledged(n) => (n, "receives the acknowledgement"),
            Self::Accept(n) => (n, "accepts the renewal"),
            Self::Refuse(n) => (n, "refuses the renewal: the read was of another term"),
            Self::LoseRenewal(n) => (n, "gives the renewal up"),
            Self::Join(n) => (n, "joins, and hears of it"),
            Self::JoinUnheard(n) => (n, "a join of it is applied, and it does not hear of it"),
            Self::Lead(n) => (n, "begins to lead"),
            Self::Resign(n) => (n, "resigns; its work winds up until the deadline"),
            Self::StepDown(n) => (n, "steps down; its work has the grace period"),
            Self::WorkEnds(n) => (n, "its work has ended"),
            Self::Overdue(n) => (n, "its work is overdue and its key has to go"),
            Self::Delete(n) => (n, "its delete is applied"),
            Self::Deleted(n) => (n, "hears that its key is gone"),
            Self::DeleteLate(n) => (n, "a delete that was sent twice is applied again"),
            Self::KeyGone(n) => (n, "learns that its key is gone"),
            Self::Sweep(n) => (n, "finds a key of its own that nobody holds"),
        };
        write!(f, "{}: {what}", NODES[n])
    }
}

/// A node in a line.
struct Line<'a>(&'a Model, &'a Node);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(model, node) = self;
        match node.phase {
            Phase::Out => return f.write_str("out"),
            Phase::Joining => f.write_str("joining")?,
            Phase::Waiting { rev } => write!(f, "waiting with key {rev}")?,
            Phase::Leading { rev } => write!(f, "LEADING with key {rev}")?,
            Phase::Ending {
                rev: Some(rev),
                cutoff,
            } => {
                write!(f, "winding up with key {rev} for {cutoff}")?;
            }
            Phase::Ending { rev: None, cutoff } => {
                write!(f, "winding up without key for {cutoff}")?;
            }
        }
        if model.acts(node) {
            f.write_str(", acts")?;
        }
        write!(f, ", believes for {}", node.belief)?;
        match node.link {
            Link::Idle => {}
            Link::Asked { until, .. } => write!(f, ", renewal for {until} sent")?,
            Link::Acked { until, .. } => write!(f, ", renewal for {until} acknowledged")?,
            Link::Verifying { until } => write!(f, ", renewal for {until} being verified")?,
            Link::Stale => f.write_str(", renewal will be refused")?,
        }
        match node.removal {
            Removal::None => {}
            Removal::Asked => f.write_str(", delete under way")?,
            Removal::Done => f.write_str(", deleted")?,
        }
        f.write_str("; in etcd ")?;
        match (node.lease, node.key) {
            (None, _) => f.write_str("nothing"),
            (Some(left), None) => write!(f, "lease for {left}"),
            (Some(left), Some(key)) => write!(f, "lease for {left}, key {key}"),
        }
    }
}

/// A path, step by step, with what has changed. Keys are numbered by age in each state.
pub(crate) fn tell(model: &Model, path: Path<State, Action>) -> String {
    let mut text = String::new();
    let mut before = State::EMPTY;
    let mut action: Option<Action> = None;
    for (number, (state, next)) in path.into_vec().into_iter().enumerate() {
        let _ = match action {
            Some(action) => writeln!(text, "{number:>3}  {action}"),
            None => writeln!(text, "{number:>3}  nobody stands"),
        };
        let nodes = state.nodes.iter().zip(&before.nodes).zip(NODES);
        for ((node, _), name) in nodes.take(model.nodes).filter(|((a, b), _)| a != b) {
            let _ = writeln!(text, "       {name}: {}", Line(model, node));
        }
        before = state;
        action = next;
    }
    text
}
