//! Hides what makes a run a good one, and how it is told: as text and as JSON.

use std::fmt;
use std::time::Duration;

use eldest::testing::history::{History, Report};
use serde_json::{Value, json};

use crate::action::{Effect, Side};
use crate::picture;
use crate::settings::Settings;
use crate::step::Step;

/// What came of a run.
pub struct Outcome {
    pub(crate) settings: Settings,
    pub(crate) seed: u64,
    pub(crate) version: String,
    pub(crate) steps: Vec<Step>,
    /// What went wrong apart from single steps.
    pub(crate) problems: Vec<String>,
    pub(crate) history: History,
    /// The checker's.
    pub report: Report,
}

impl Outcome {
    /// Every invariant held, every fault did what it should, and enough happened for that to mean anything.
    pub fn is_ok(&self) -> bool {
        self.report.is_ok() && self.problems().is_empty() && self.missing().is_empty()
    }

    /// What went wrong, apart from invariants.
    pub fn problems(&self) -> Vec<String> {
        let of_steps = self.steps.iter().flat_map(|step| {
            let told = |problem: &String| format!("{}: {problem}", step.name());
            step.problems.iter().map(told)
        });
        self.problems.iter().cloned().chain(of_steps).collect()
    }

    /// What did not happen although it had to: a run without it shows nothing.
    pub fn missing(&self) -> Vec<String> {
        let counts = &self.report.counts;
        let of =
            |wanted: &dyn Fn(&Step) -> bool| self.steps.iter().filter(|step| wanted(step)).count();
        let on_leader = of(&|step| step.cards.iter().any(|card| card.side == Side::Leader));
        let changes = of(&|step| {
            let ends = [Effect::Changed, Effect::ChangedAtOnce, Effect::Vacant];
            step.effect().is_some_and(|effect| ends.contains(&effect))
        });
        let refusals = of(&|step| step.effect().is_some() && step.cards[0].refuses);
        let refusals = if self.settings.fenced { refusals } else { 0 };
        let wanted = [
            ("steps", self.steps.len(), 1),
            ("elections", counts.elections, 1 + changes),
            ("faults", counts.faults, self.steps.len()),
            (
                "faults that hit a leader",
                counts.faults_on_leader,
                on_leader,
            ),
            ("fenced writes refused", counts.writes_refused, refusals),
            ("fenced writes admitted", counts.writes_admitted, 1),
            ("checks of a term", counts.samples, counts.elections),
            (
                "elections whose seniority was checked",
                counts.elections_checked_for_seniority,
                1,
            ),
        ];
        let mut missing: Vec<String> = wanted
            .into_iter()
            .filter(|(_, found, least)| found < least)
            .map(|(what, found, least)| format!("{found} {what}; there must be {least}"))
            .collect();
        if counts.open_faults > 0 {
            missing.push(format!("the end of {} faults", counts.open_faults));
        }
        missing
    }

    /// The timeline: who led by belief and by etcd, and the faults.
    pub fn picture(&self) -> String {
        picture::draw(&self.history)
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let counts = &self.report.counts;
        let millis = |time: Option<Duration>| time.map(|time| time.as_millis() as u64);
        let steps: Vec<Value> = self
            .steps
            .iter()
            .map(|step| {
                json!({
                    "faults": step.cards.iter().map(|card| card.name).collect::<Vec<_>>(),
                    "hit": step.victims,
                    "leader_before": step.before,
                    "token_before": step.token,
                    "leader_after": step.settled.as_ref().map(|(_, node, _)| node),
                    "token_after": step.settled.as_ref().map(|(_, _, token)| token),
                    "expected": step.effect().map(expected),
                    "believed_ms": millis(step.believed),
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
            "steps": steps,
            "violations": violations,
            "problems": self.problems(),
            "missing": self.missing(),
            "counts": {
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
            },
        })
    }

    /// One step, for people.
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
        let times = [("last yes", step.believed), ("next elected", step.vacant)];
        let times = times.into_iter().filter_map(|(what, time)| {
            time.map(|time| format!(", {what} after {:.2} s", time.as_secs_f64()))
        });
        let mut line = format!("{} ({}): {what}", step.name(), victims.join(", "));
        line.extend(times);
        for problem in &step.problems {
            line.push_str("\n    WRONG: ");
            line.push_str(problem);
        }
        line
    }
}

fn hit(name: &str) -> &str {
    if name.is_empty() { "everybody" } else { name }
}

fn expected(effect: Effect) -> &'static str {
    match effect {
        Effect::Kept => "kept",
        Effect::Changed => "changed",
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
        // Violations and counts; the nodes' own timelines are what the picture shows.
        let report = self.report.to_string();
        let ends = report.find("early, not by us").map_or(report.len(), |at| {
            report[at..]
                .find('\n')
                .map_or(report.len(), |line| at + line + 1)
        });
        f.write_str(&report[..ends])?;
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
