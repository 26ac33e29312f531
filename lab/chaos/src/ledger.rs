//! Reads the nodes' histories while they grow, and derives each node's terms of the election from them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use eldest_testing::history::{Event, Outcome, What};

use crate::{Result, shared};

/// All records of the nodes up to now.
#[derive(Default)]
pub(crate) struct Ledger {
    files: Vec<Page>,
    events: Vec<Event>,
    terms: BTreeMap<(String, i64), Term>,
}

struct Page {
    path: PathBuf,
    read: u64,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
}

/// The state of a leader's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    /// A write is in flight.
    OnTheWay {
        /// The time at which the node recorded the write, before it began it.
        since: Duration,
    },
    /// No write is in flight, and another one follows.
    Between,
    /// The term is over, so no write follows.
    NoMore,
}

/// The reports of a node about one term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) elected: Duration,
    /// The last time at which the term was recorded as valid.
    pub(crate) valid: Duration,
    /// The time at which the node learned, or saw, that the term is over.
    pub(crate) ended: Option<Duration>,
}

impl Ledger {
    /// Adds a file, which need not exist yet.
    pub(crate) fn follow(&mut self, path: PathBuf) {
        self.files.push(Page {
            path,
            read: 0,
            rest: Vec::new(),
        });
    }

    /// Reads the new lines of all files.
    pub(crate) fn refresh(&mut self) -> Result {
        for page in &mut self.files {
            let from = self.events.len();
            page.read(&mut self.events)?;
            for event in &self.events[from..] {
                note(&mut self.terms, event);
            }
        }
        Ok(())
    }

    /// Records that the node is dead, which ends its earlier terms.
    pub(crate) fn died(&mut self, node: &str, at: Duration) -> Result {
        self.refresh()?;
        for ((name, _), term) in &mut self.terms {
            if name == node {
                term.ended = term.ended.or(Some(at));
            }
        }
        Ok(())
    }

    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the latest term of a node.
    pub(crate) fn latest(&self, node: &str) -> Option<(i64, Term)> {
        let key = |token| (node.to_owned(), token);
        let mut terms = self.terms.range(key(i64::MIN)..=key(i64::MAX));
        terms.next_back().map(|((_, token), term)| (*token, *term))
    }

    pub(crate) fn term(&self, node: &str, token: i64) -> Option<Term> {
        self.terms.get(&(node.to_owned(), token)).copied()
    }

    /// Returns the ended terms, by node and token.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (&str, i64)> {
        let ended = self.terms.iter().filter(|(_, term)| term.ended.is_some());
        ended.map(|((node, token), _)| (node.as_str(), *token))
    }

    /// Returns the first term of any node that began after that time.
    pub(crate) fn elected_after(&self, time: Duration) -> Option<(&str, i64, Term)> {
        let later = self.terms.iter().filter(|(_, term)| term.elected > time);
        let first = later.min_by_key(|(_, term)| term.elected)?;
        Some((&first.0.0, first.0.1, *first.1))
    }

    /// Returns true if some node recorded this key as its own.
    pub(crate) fn is_known(&self, key: i64) -> bool {
        let mut events = self.events.iter().rev();
        events.any(|event| {
            matches!(event.what, What::Joined { create_revision, .. } if create_revision == key)
        })
    }

    /// Returns the state of a term's writes to that counter, by the node's own records.
    pub(crate) fn writes(&self, (node, token): (&str, i64), counter: &str) -> Writes {
        let over = |term: Term| term.ended.is_some();
        if let Some(since) = self.sent(node, counter) {
            Writes::OnTheWay { since }
        } else if self.term(node, token).is_some_and(over) {
            Writes::NoMore
        } else {
            Writes::Between
        }
    }

    /// Returns since when a write is in flight, if that is the node's last record about that counter.
    fn sent(&self, node: &str, counter: &str) -> Option<Duration> {
        let (at, last) = self
            .events
            .iter()
            .rev()
            .find_map(|event| match event.what {
                What::FencedWrite { outcome, .. }
                    if event.node == node && event.election == counter =>
                {
                    Some((event.at, outcome))
                }
                _ => None,
            })?;
        (last == Outcome::Sent).then_some(at)
    }
}

fn note(terms: &mut BTreeMap<(String, i64), Term>, event: &Event) {
    if shared::is_partition(event) {
        return;
    }
    let (What::Elected { token }
    | What::Valid { token }
    | What::Invalid { token }
    | What::LostToken { token, .. }
    | What::Released { token }) = event.what
    else {
        return;
    };
    let term = terms.entry((event.node.clone(), token)).or_insert(Term {
        elected: event.at,
        valid: event.at,
        ended: None,
    });
    match event.what {
        What::Elected { .. } => term.elected = event.at,
        What::Valid { .. } => term.valid = term.valid.max(event.at),
        _ => term.ended = term.ended.or(Some(event.at)),
    }
}

impl Page {
    fn read(&mut self, events: &mut Vec<Event>) -> Result {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        file.seek(SeekFrom::Start(self.read))?;
        self.read += file.read_to_end(&mut self.rest)? as u64;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(());
        };
        let rest = self.rest.split_off(end + 1);
        let text = std::mem::replace(&mut self.rest, rest);
        for line in String::from_utf8_lossy(&text).lines() {
            match line.parse() {
                Ok(event) => events.push(event),
                // A killed process leaves half a line behind, and its successor completes the line with its own.
                Err(_) if !line.ends_with('}') => {}
                Err(error) => {
                    return Err(format!("{}: {error}: {line}", self.path.display()).into());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn line(at: u64, what: &str) -> String {
        format!(r#"{{"at":{at},"node":"n","election":"e","what":"{what}","token":7}}"#)
    }

    #[test]
    fn leader_that_resigned_is_not_expected_to_write() -> Result {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("n");
        let mut ledger = Ledger::default();
        ledger.follow(path.clone());
        let mut file = File::create(path)?;
        let token = 7;
        let since = Duration::from_secs(1);
        let on_the_way = Writes::OnTheWay { since };
        let write = |outcome| What::FencedWrite { token, outcome };
        let mut says = |what| -> Result<Writes> {
            let event = Event {
                at: since,
                node: "n".to_owned(),
                election: "e".to_owned(),
                what,
            };
            writeln!(file, "{}", serde_json::to_string(&event)?)?;
            ledger.refresh()?;
            Ok(ledger.writes(("n", token), "e"))
        };
        assert_eq!(says(What::Elected { token })?, Writes::Between);
        assert_eq!(says(write(Outcome::Sent))?, on_the_way);
        assert_eq!(says(write(Outcome::Refused))?, Writes::Between);
        assert_eq!(says(What::Invalid { token })?, Writes::NoMore);
        let late = says(write(Outcome::Sent))?;
        assert_eq!(late, on_the_way, "it began before the term ended");
        Ok(())
    }

    #[test]
    fn a_file_that_grows_is_read_line_by_line() -> Result {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("n");
        let mut ledger = Ledger::default();
        ledger.follow(path.clone());
        ledger.refresh()?;
        assert_eq!(ledger.events().len(), 0);

        let mut file = File::create(&path)?;
        write!(file, "{}\n{}", line(1, "elected"), &line(2, "valid")[..9])?;
        ledger.refresh()?;
        assert_eq!(ledger.events().len(), 1);
        write!(file, "{}\n{}\n", &line(2, "valid")[9..], line(3, "valid"))?;
        ledger.refresh()?;
        let nanos = Duration::from_nanos;
        let term = Term {
            elected: nanos(1),
            valid: nanos(3),
            ended: None,
        };
        assert_eq!(ledger.latest("n"), Some((7, term)));

        // The process was killed in the middle of a line; its successor ends it.
        write!(
            file,
            "{}\n{}\n",
            &line(4, "valid")[..20],
            line(5, "invalid")
        )?;
        ledger.refresh()?;
        assert_eq!(ledger.events().len(), 4);
        assert_eq!(
            ledger.term("n", 7).and_then(|term| term.ended),
            Some(nanos(5))
        );
        assert!(ledger.elected_after(nanos(1)).is_none());

        // The node dies while it leads, and its last lines are read later.
        let again = line(6, "elected").replace('7', "8");
        writeln!(file, "{again}")?;
        ledger.died("n", nanos(7))?;
        let ended = |ledger: &Ledger| ledger.latest("n").and_then(|(_, term)| term.ended);
        assert_eq!(ended(&ledger), Some(nanos(7)));
        writeln!(file, "{}", again.replace("elected", "valid"))?;
        ledger.refresh()?;
        assert_eq!(ended(&ledger), Some(nanos(7)));
        Ok(())
    }
}
