//! Implements `eldest evict`: selects exactly one candidate, asks for confirmation, and deletes its key.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;
use eldest::{Member, Roster, operator};
use eldest_http::contract::command::Evicted;

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::output::{self, Format, one_line};
use crate::view::{self, Leases};

/// Delete a candidate's key, so that the next candidate leads
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Delete a candidate's key, so that the next candidate leads.\n\n\
    The key is deleted only if it is still the one that was shown. The node itself is not asked. If it leads, it acts as \
    leader until its watch reports the deletion, usually within milliseconds, or until its local deadline at the latest. Use `eldest \
    step-down` to let it end its work first, or stop its process with SIGTERM: then it resigns. An evicted node of eldest joins again, at the end of \
    the queue.\n\n\
    A key without a lease that blocks an election is deleted in the same way.",
    after_help = "Examples:
  # Choose the candidate by its name, and confirm
  eldest evict billing/scheduler --id node-a
  # Delete a blocking key without a question
  eldest evict billing/scheduler --candidate eldest/billing/scheduler/manual --yes"
)]
pub(crate) struct Args {
    /// The name of the election or lock
    election: String,

    /// The name of the candidate; without --candidate, refused unless exactly one candidate has that name
    #[arg(long, value_name = "NAME")]
    id: Option<String>,

    /// The key to delete, as `eldest status --output json` shows it, or its last level
    #[arg(long, value_name = "KEY")]
    candidate: Option<String>,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let key = args.candidate.as_deref();
    if args.id.is_none() && key.is_none() {
        return Err(fault(
            Code::Usage,
            "say whom: --id NAME, or --candidate KEY",
        ));
    }
    let session = global.connection.observer().await?;
    let election = session.election(&args.election)?;
    let roster = election.roster().await?;
    let member = select(&roster, election.prefix(), args.id.as_deref(), key)?;
    if !args.yes {
        confirm(election.name(), &roster, member)?;
    }
    let stood = operator::evict(&session, member).await?;
    if !stood {
        let message = format!(
            "{} had already left; nothing was deleted",
            described(member)
        );
        return Err(fault(Code::NotDone, message));
    }
    let after = election.roster().await?;
    let next = after
        .leader()
        .map(|leader| view::candidate(leader, true, &Leases::new()));
    match global.output {
        Format::Json => output::say_json(&Evicted {
            election: election.name().to_owned(),
            evicted: view::candidate(member, roster.leader() == Some(member), &Leases::new()),
            leader: next,
        })?,
        Format::Text => {
            let next = view::leads_now(next.as_ref());
            output::say(format!(
                "{} is out of {}; {next}",
                described(member),
                election.name()
            ))?;
        }
    }
    Ok(Code::Done)
}

/// Returns the one candidate that the options select.
fn select<'a>(
    roster: &'a Roster,
    prefix: &str,
    id: Option<&str>,
    key: Option<&str>,
) -> Result<&'a Member> {
    let is_named = |member: &&Member| id.is_none_or(|id| member.identity() == id);
    let is_keyed = |member: &&Member| {
        key.is_none_or(|key| {
            let last = key.strip_prefix(prefix).unwrap_or(key);
            member.key().strip_prefix(prefix.as_bytes()) == Some(last.as_bytes())
        })
    };
    let members = roster.members().iter();
    let found: Vec<&Member> = members.filter(is_named).filter(is_keyed).collect();
    match found[..] {
        [one] => Ok(one),
        [] => {
            let wanted = match (id, key) {
                (Some(id), None) => format!("called {id:?}"),
                (None, Some(key)) => format!("with the key {key:?}"),
                _ => "of that name with that key".to_owned(),
            };
            let there = if roster.members().is_empty() {
                "there are no candidates".to_owned()
            } else {
                let names = roster.members().iter().map(Member::identity);
                format!("there are {}", list(names))
            };
            Err(fault(
                Code::NotDone,
                format!("no candidate {wanted}; {there}"),
            ))
        }
        _ => {
            let keys = found.iter().map(|member| view::key_of(member));
            let keys: Vec<String> = keys.collect();
            let message = format!(
                "{} candidates are called {:?}; choose one with --candidate: {}",
                found.len(),
                id.unwrap_or_default(),
                list(keys.iter().map(String::as_str))
            );
            Err(fault(Code::NotDone, message))
        }
    }
}

/// Joins the first few names, for a message.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const MANY: usize = 10;
    let mut names: Vec<String> = names.map(one_line).collect();
    let more = names.len().saturating_sub(MANY);
    names.truncate(MANY);
    let names = names.join(", ");
    if more > 0 {
        format!("{names} and {more} more")
    } else {
        names
    }
}

fn described(member: &Member) -> String {
    view::described(&view::candidate(member, false, &Leases::new()))
}

/// Asks the person at the terminal. Without a terminal it returns an error, because nobody can answer.
fn confirm(election: &str, roster: &Roster, member: &Member) -> Result<()> {
    if !io::stdin().is_terminal() {
        let message = "no terminal to confirm at: use --yes to delete without a question";
        return Err(fault(Code::Usage, message));
    }
    let key = one_line(&view::key_of(member));
    let who = described(member);
    let what = if roster.leader() == Some(member) {
        format!(
            "{who} leads {election} with token {}",
            member.create_revision()
        )
    } else {
        format!("{who} waits in {election} at rank {}", member.rank())
    };
    let mut terminal = io::stderr();
    write!(terminal, "{what}. Delete its key {key}? [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(fault(Code::NotDone, "nothing was deleted: you declined"))
}
