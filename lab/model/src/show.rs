//! Formats the model's states and paths for people.

use std::fmt::{self, Write as _};

use stateright::Path;

use crate::action::{Action, NODES};
use crate::model::Model;
use crate::state::{Link, Node, Phase, Removal, State};

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
            Phase::Outlived { cutoff } => write!(f, "dead, its work goes on for {cutoff}")?,
            Phase::Dead => f.write_str("dead")?,
        }
        if node.acts(model) {
            f.write_str(", acts")?;
        }
        write!(f, ", trusts its lease for {}", node.belief)?;
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

/// Describes a path, step by step, with what has changed. Keys are numbered by age in each state.
pub(crate) fn describe_path(model: &Model, path: Path<State, Action>) -> String {
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
