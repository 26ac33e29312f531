//! Reads and writes kept plans: one file for each lesson, with the rule whose break its plan must notice.

use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::plan::{Fault, Member, Plan, SETTINGS};
use crate::world::cluster::ELECTIONS;

/// A file of a plan.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kept {
    /// The bug, in one or two sentences. Empty until its author writes it.
    pub(crate) lesson: String,
    /// The mutant of `mutants.toml` that breaks the rule again. Empty until its author names it.
    pub(crate) mutant: String,
    pub(crate) plan: Plan,
}

impl Kept {
    /// # Errors
    ///
    /// The file cannot be read, or is no plan: the message names its line or its fault, and the rule.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path);
        let kept = text.map_err(|error| error.to_string());
        let kept = kept.and_then(|text| Self::parse(&text));
        kept.map_err(|message| format!("{}: {message}", path.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let kept: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        check(&kept.plan)?;
        Ok(kept)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let written = std::fs::write(path, self.text());
        written.map_err(|error| format!("{}: {error}", path.display()))
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "lesson = {}\nmutant = {}\n\n{}",
            toml::Value::from(self.lesson.as_str()),
            toml::Value::from(self.mutant.as_str()),
            of_plan(&self.plan),
        )
    }
}

/// Formats the differences from a plain plan; a line for each member and each fault.
pub(crate) fn of_plan(plan: &Plan) -> String {
    let head = Plan {
        members: Vec::new(),
        faults: Vec::new(),
        ..plan.clone()
    };
    let members = plan.members.iter();
    let members = members.map(|member| differing(member, &Member::default()));
    format!(
        "[plan]\n{}members = [\n{}]\nfaults = [\n{}]\n",
        differing(&head, &Plan::default()),
        rows(members),
        rows(plan.faults.iter().map(fault_table)),
    )
}

fn rows(tables: impl Iterator<Item = toml::Table>) -> String {
    let row = |table| format!("    {},\n", toml::Value::Table(table));
    tables.map(row).collect()
}

fn table(value: &impl Serialize) -> toml::Table {
    toml::Table::try_from(value).expect("plans hold what TOML can")
}

/// Returns the fields that differ from the plain one.
fn differing<T: Serialize>(value: &T, plain: &T) -> toml::Table {
    let plain = table(plain);
    let mut table = table(value);
    table.retain(|name, value| plain.get(name) != Some(value));
    table
}

/// Returns the names of the fields that differ from the plain one.
pub(crate) fn choices<T: Serialize>(value: &T, plain: &T) -> Vec<String> {
    differing(value, plain)
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}

/// Returns the value with that field as in the plain one.
pub(crate) fn without<T: Serialize + DeserializeOwned>(value: &T, name: &str, plain: &T) -> T {
    let mut table = differing(value, plain);
    table.remove(name);
    table.try_into().expect("a plain field is valid")
}

/// Returns the fault's fields that are not zero.
fn fault_table(fault: &Fault) -> toml::Table {
    let zero = [toml::Value::Integer(0), toml::Value::Float(0.0)];
    let mut table = table(fault);
    table.retain(|_, value| !zero.contains(value));
    table
}

fn ensure(so: bool, rule: &str) -> Result<(), String> {
    so.then_some(()).ok_or_else(|| rule.to_owned())
}

/// Returns the rule that the plan breaks, and the number of the fault that breaks it.
pub(crate) fn check(plan: &Plan) -> Result<(), String> {
    check_plan(plan)?;
    let mut before = None;
    for (number, fault) in (1..).zip(&plan.faults) {
        let checked = check_fault(plan, before.replace(fault), fault);
        checked.map_err(|rule| format!("fault {number}: {rule}"))?;
    }
    Ok(())
}

fn check_plan(plan: &Plan) -> Result<(), String> {
    let delays = Duration::from_millis(1)..SETTINGS.timeout;
    ensure(plan.is_fair(), "a plan has a member whose work ends")?;
    ensure(
        delays.contains(&plan.delay),
        "`delay` is at least 0.001 and less than a request's timeout",
    )?;
    ensure(plan.long_queue > 0, "`long_queue` is at least 1")?;
    ensure(plan.batch > 0, "`batch` is at least 1")
}

fn check_fault(plan: &Plan, before: Option<&Fault>, fault: &Fault) -> Result<(), String> {
    ensure(
        before.is_none_or(|before| before.at <= fault.at),
        "faults are in the order in which they begin",
    )?;
    ensure(
        fault.node < plan.members.len(),
        "`node` is one of the members, counted from 0",
    )?;
    ensure(fault.election < ELECTIONS.len(), "`election` is 0 or 1")?;
    ensure(
        !fault.kind.is_about_challenges() || !plan.lead.is_zero(),
        "only sessions with a `lead` are challenged",
    )?;
    ensure(
        plan.beside.fits(fault.kind),
        "nothing of what this kind is about is `beside`",
    )?;
    ensure(
        fault.of.is_none() || Kind::ONCE.contains(&fault.kind),
        "only a kind that meets one request has `of`",
    )?;
    ensure(
        fault.lies_in_a_storm(plan.storm),
        "a fault begins and ends within one storm",
    )
}
