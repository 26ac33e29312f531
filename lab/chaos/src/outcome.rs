//! Decides whether a run succeeded, and formats its result as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use eldest_testing::history::{Counts, History, Report};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::action::{Card, Effect, Side};
use crate::distance::Seen;
use crate::picture;
use crate::settings::Settings;
use crate::shared;
use crate::step::Step;
use crate::used::Used;

/// The results of a run.
pub struct Outcome {
    pub(crate) settings: Settings,
    pub(crate) seed: u64,
    pub(crate) version: String,
    pub(crate) steps: Vec<Step>,
    /// Results of distance, if the run had any.
    pub(crate) wide: Option<Seen>,
    /// The challenges between the nodes, if these allow any.
    pub(crate) challenges: Option<Challenges>,
    /// The uses of what `--ready` gives to the nodes, if it was given.
    pub(crate) ready: Option<Used>,
    /// Problems apart from single steps.
    pub(crate) problems: Vec<String>,
    pub(crate) history: History,
    /// The checker's report.
    pub report: Report,
    /// The folder of all nodes' files; dropping this value deletes it.
    pub(crate) folder: TempDir,
}

/// How many challenges the nodes' logs report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Challenges {
    pub(crate) sent: usize,
    pub(crate) condemned: usize,
}

impl Outcome {
    /// Returns true if every invariant held, every fault had its effect, and enough happened to prove something.
    pub fn is_ok(&self) -> bool {
        self.report.is_ok() && self.problems().is_empty() && self.missing().is_empty()
    }

    /// Returns the problems, apart from broken invariants.
    pub fn problems(&self) -> Vec<String> {
        let of_steps = self.steps.iter().flat_map(|step| {
            let named = |problem: &String| format!("{}: {problem}", step.name());
            step.problems.iter().map(named)
        });
        let of_distance = self.wide.iter().flat_map(Seen::problems);
        let problems = self.problems.iter().cloned().chain(of_steps);
        problems.chain(of_distance).collect()
    }

    /// Returns the required events that did not happen: without them a run proves nothing.
    pub fn missing(&self) -> Vec<String> {
        let wide = self.wide.iter().flat_map(|seen| seen.wanted(&self.steps));
        let (counts, fenced) = (&self.report.counts, self.settings.fenced);
        let ready = self.ready.into_iter().flat_map(Used::wanted);
        missing(&self.steps, counts, fenced, wide.chain(ready))
    }

    /// Keeps all files, with the whole history beside them, and returns their folder.
    ///
    /// # Errors
    ///
    /// The history cannot be written.
    pub fn keep(self) -> std::io::Result<PathBuf> {
        self.history.save(self.folder.path().join("all.jsonl"))?;
        Ok(self.folder.keep())
    }

    /// Draws the timeline: who led by the nodes' own view and by etcd, and the faults.
    pub fn picture(&self) -> String {
        let events = self.history.events().iter();
        let of_election = events.filter(|event| !shared::is_partition(event));
        picture::draw(&History::new(of_election.cloned()))
    }

    /// Formats the outcome for programs.
    pub fn json(&self) -> Value {
        let millis = |time: Option<Duration>| time.map(|time| time.as_millis() as u64);
        let steps: Vec<Value> = self
            .steps
            .iter()
            .map(|step| {
                json!({
                    "faults": step.cards.iter().map(|card| card.name).collect::<Vec<_>>(),
                    "hit": step.victims,
                    "hit_nothing": step.misses,
                    "leader_before": step.before,
                    "token_before": step.token,
                    "leader_after": step.settled.as_ref().map(|(_, node, _)| node),
                    "token_after": step.settled.as_ref().map(|(_, _, token)| token),
                    "expected": step.effect().map(expected),
                    "last_yes_ms": millis(step.last_yes),
                    "vacant_ms": millis(step.vacant),
                    "lasted_ms": millis(Some(step.undone.saturating_sub(step.from))),
                    "problems": step.problems,
                })
            })
            .collect();
        let violations: Vec<Value> = self
            .report
            .violations
            .iter()
            .map(|violation| {
                json!({
                    "invariant": violation.invariant.to_string(),
                    "election": violation.election,
                    "explanation": violation.explanation,
                })
            })
            .collect();
        json!({
            "ok": self.is_ok(),
            "seed": self.seed,
            "etcd": self.version,
            "nodes": self.settings.nodes,
            "members": self.settings.members,
            "ttl_ms": self.settings.ttl.as_millis() as u64,
            "wide": self.wide.as_ref().map(|seen| seen.json(&self.steps, &self.history)),
            "steps": steps,
            "violations": violations,
            "problems": self.problems(),
            "missing": self.missing(),
            "challenges": self.challenges.map(|made| {
                json!({ "sent": made.sent, "condemned": made.condemned })
            }),
            "ready": self.ready.map(|used| {
                let wanted = used.wanted().into_iter();
                wanted.map(|(what, found, _)| (what, found)).collect::<BTreeMap<_, _>>()
            }),
            "counts": json_of_counts(&self.report.counts),
        })
    }

    /// Formats one step for people.
    pub(crate) fn line(step: &Step) -> String {
        let victims: Vec<&str> = step.victims.iter().map(|name| hit(name)).collect();
        let what = match &step.settled {
            None => "it did not settle".to_owned(),
            Some((_, node, token)) if *token == step.token => {
                format!("{node} goes on with token {token}")
            }
            Some((_, node, token)) => {
                format!(
                    "{} with {} gave way to {node} with {token}",
                    step.before, step.token
                )
            }
        };
        let times = [("last yes", step.last_yes), ("next elected", step.vacant)];
        let times = times.into_iter().filter_map(|(what, time)| {
            time.map(|time| format!(", {what} after {:.2} s", time.as_secs_f64()))
        });
        let mut line = format!("{} ({}): {what}", step.name(), victims.join(", "));
        line.extend(times);
        for name in &step.misses {
            line.push_str("\n    hit nothing, because its victim no longer led or stood: ");
            line.push_str(name);
        }
        for problem in &step.problems {
            line.push_str("\n    WRONG: ");
            line.push_str(problem);
        }
        line
    }
}

fn json_of_counts(counts: &Counts) -> Value {
    json!({
        "elections": counts.elections,
        "terms": counts.terms,
        "samples": counts.samples,
        "faults": counts.faults,
        "faults_on_leader": counts.faults_on_leader,
        "open_faults": counts.open_faults,
        "vacancies": counts.vacancies,
        "writes_admitted": counts.writes_admitted,
        "writes_refused": counts.writes_refused,
        "writes_unknown": counts.writes_unknown,
        "elections_checked_for_seniority": counts.elections_checked_for_seniority,
        "elections_hidden_by_gaps": counts.elections_hidden_by_gaps,
        "deleted_early": counts.deleted_early,
        "overlaps_after_early_delete": counts.overlaps_after_early_delete,
        "overlaps_while_stopped": counts.overlaps_while_stopped,
    })
}

fn missing(
    steps: &[Step],
    counts: &Counts,
    fenced: bool,
    more: impl IntoIterator<Item = (&'static str, usize, usize)>,
) -> Vec<String> {
    let of = |wanted: &dyn Fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    let on_leader = of(&|step| {
        let hits = |card: &Card| card.side == Side::Leader && step.hit(card);
        step.cards.iter().any(hits)
    });
    let changes = of(&|step| step.effect().is_some_and(Effect::ends));
    let refusals = of(&|step| fenced && step.effect().is_some() && step.cards[0].refuses);
    let seniority = counts.elections_checked_for_seniority;
    let wanted = [
        ("steps", steps.len(), 1),
        ("elections", counts.elections, 1 + changes),
        ("faults", counts.faults, steps.len()),
        (
            "faults that hit a leader",
            counts.faults_on_leader,
            on_leader,
        ),
        ("fenced writes refused", counts.writes_refused, refusals),
        ("fenced writes admitted", counts.writes_admitted, 1),
        ("checks of a term", counts.samples, counts.elections.max(1)),
        ("elections whose seniority was checked", seniority, 1),
    ];
    let short = wanted.into_iter().chain(more);
    let short = short.filter(|(_, found, least)| found < least);
    let texts = short.map(|(what, found, least)| format!("{found} {what}; there must be {least}"));
    let open = counts.open_faults;
    let never_healed = (open > 0).then(|| format!("{open} faults never ended"));
    texts.chain(never_healed).chain(never_hit(steps)).collect()
}

/// Returns the faults that were made and had no target each time.
fn never_hit(steps: &[Step]) -> impl Iterator<Item = String> {
    let mut hits = BTreeMap::new();
    for step in steps {
        for card in &step.cards {
            *hits.entry(card.name).or_default() |= step.hit(card);
        }
    }
    let never = hits.into_iter().filter(|(_, hit): &(_, bool)| !hit);
    never.map(|(name, _)| format!("{name} never hit anything"))
}

fn hit(name: &str) -> &str {
    if name.is_empty() { "everybody" } else { name }
}

fn expected(effect: Effect) -> &'static str {
    match effect {
        Effect::Kept => "kept",
        Effect::Changed => "changed",
        Effect::ChangedByGuard => "changed by guard",
        Effect::ChangedAtOnce => "changed at once",
        Effect::Vacant => "vacant",
        Effect::KeptOrChanged => "kept or changed",
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            nodes,
            members,
            ttl,
            ..
        } = self.settings;
        let (seed, version) = (self.seed, &self.version);
        writeln!(
            f,
            "seed {seed}: {nodes} nodes with a TTL of {ttl:?}, {members} servers of etcd {version}"
        )?;
        let origin = self
            .history
            .events()
            .first()
            .map_or(Duration::ZERO, |first| first.at);
        for step in &self.steps {
            let at = step.from.saturating_sub(origin).as_secs_f64();
            writeln!(f, "{at:>8.2} s  {}", Self::line(step))?;
        }
        if let Some(seen) = &self.wide {
            seen.write_text(f, &self.settings, &self.steps, &self.history)?;
        }
        // The picture shows the nodes' own timelines, so the text has only violations and counts.
        let report = self.report.to_string();
        let ends = report.find("early, not by us").map_or(report.len(), |at| {
            report[at..]
                .find('\n')
                .map_or(report.len(), |line| at + line + 1)
        });
        f.write_str(&report[..ends])?;
        if let Some(Challenges { sent, condemned }) = self.challenges {
            writeln!(
                f,
                "challenges: {sent}, of which {condemned} condemned a session"
            )?;
        }
        for (what, found, _) in self.ready.into_iter().flat_map(Used::wanted) {
            writeln!(f, "{what}: {found}")?;
        }
        for problem in self.problems() {
            writeln!(f, "WRONG: {problem}")?;
        }
        for missing in self.missing() {
            writeln!(f, "TOO LITTLE: {missing}")?;
        }
        let verdict = if self.is_ok() {
            "every invariant held"
        } else {
            "FAILED"
        };
        writeln!(f, "{verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::step;

    #[test]
    fn only_a_fault_without_any_hit_in_the_run_is_missing() {
        let pair = |misses: &[&'static str]| {
            let mut pair = step("delete-leader");
            pair.cards.extend(step("stop-leader").cards);
            pair.misses.extend(misses);
            pair
        };
        let gave_way = || pair(&["stop-leader"]);
        let never = |steps: &[Step]| never_hit(steps).collect::<Vec<_>>();
        assert_eq!(never(&[gave_way()]), ["stop-leader never hit anything"]);
        assert_eq!(never(&[gave_way(), pair(&[])]), [""; 0]);
        assert_eq!(never(&[step("stop-leader"), gave_way()]), [""; 0]);
        let line = Outcome::line(&gave_way());
        assert!(line.ends_with("stood: stop-leader"), "{line}");

        // A fault without a target does not count.
        let mut counts = Counts::default();
        (counts.elections, counts.faults, counts.samples) = (1, 1, 1);
        (
            counts.writes_admitted,
            counts.elections_checked_for_seniority,
        ) = (1, 1);
        let mut missed = pair(&["delete-leader", "stop-leader"]);
        missed.cards.extend(step("kill-follower").cards);
        let problems = missing(&[missed], &counts, true, []);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems
                .iter()
                .all(|problem| problem.ends_with("never hit anything"))
        );
    }

    #[test]
    fn run_without_a_required_event_reports_it() {
        let steps = [step("stop-leader"), step("kill-follower")];
        let mut enough = Counts::default();
        enough.elections = 2;
        enough.faults = 2;
        enough.faults_on_leader = 1;
        enough.writes_refused = 1;
        enough.writes_admitted = 1;
        enough.samples = 2;
        enough.elections_checked_for_seniority = 1;
        assert_eq!(missing(&steps, &enough, true, []), [""; 0]);
        assert_eq!(missing(&[], &enough, true, []).len(), 1);

        let fields: [fn(&mut Counts) -> &mut usize; 7] = [
            |counts| &mut counts.elections,
            |counts| &mut counts.faults,
            |counts| &mut counts.faults_on_leader,
            |counts| &mut counts.writes_refused,
            |counts| &mut counts.writes_admitted,
            |counts| &mut counts.samples,
            |counts| &mut counts.elections_checked_for_seniority,
        ];
        for field in fields {
            let mut fewer = enough;
            *field(&mut fewer) -= 1;
            assert_eq!(missing(&steps, &fewer, true, []).len(), 1);
        }
        enough.writes_refused = 0;
        assert_eq!(missing(&steps, &enough, false, []), [""; 0]);
        let more = missing(&steps, &enough, false, [("packets", 0, 1), ("ways", 2, 2)]);
        assert_eq!(more, ["0 packets; there must be 1"]);
        enough.open_faults = 1;
        assert_eq!(
            missing(&steps, &enough, false, []),
            ["1 faults never ended"]
        );
    }
}
