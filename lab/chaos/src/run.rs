//! Runs a plan from its first step to the checker's verdict.

use std::time::Duration;

use eldest_testing::history::{Rules, check};

use crate::action::Realm;
use crate::distance::Seen;
use crate::lab::{CHALLENGED, CONDEMNED, Lab};
use crate::outcome::Challenges;
use crate::plan::Draw;
use crate::site::apart;
use crate::step::{Step, step};
use crate::used::Used;
use crate::wide::Wide;
use crate::{Outcome, Plan, Result, Settings};

/// How late the harness may stamp changes that etcd reports to its watchers: it also starts, stops and awaits
/// processes, while other work keeps the machine busy.
const OBSERVER_LAG: Duration = Duration::from_millis(1500);

/// Carries out the plan, and judges the records.
///
/// # Errors
///
/// The cluster or the nodes did not start, or what they recorded cannot be read.
pub async fn run(settings: &Settings, plan: &Plan) -> Result<Outcome> {
    // The future is boxed because it contains the whole state of a run.
    Box::pin(whole(settings, plan, None)).await
}

/// Carries out the plan among data centres, then makes no faults for a while, and judges the records. It has a runtime
/// of its own.
///
/// # Errors
///
/// As for [`run`]; also, this machine or this program's permissions do not allow it.
pub fn wide(settings: &Settings, plan: &Plan, wide: &Wide) -> Result<Outcome> {
    apart(|| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime
            .enable_all()
            .build()?
            .block_on(Box::pin(whole(settings, plan, Some(wide))))
    })
}

async fn whole(settings: &Settings, plan: &Plan, wide: Option<&Wide>) -> Result<Outcome> {
    plan.check(settings)?;
    let mut faults = plan.faults.iter();
    let clocks = faults.any(|action| action.card().realm == Realm::Clock);
    let lab = Box::pin(Lab::start(settings, wide, clocks)).await?;
    let settings = &lab.settings.clone();
    lab.say(&format!(
        "{} nodes stand before {} servers of etcd, in {}",
        settings.nodes,
        settings.members,
        lab.folder().display()
    ));
    let mut draw = Draw::new(plan);
    let (began, mut steps, mut problems) = (lab.now(), Vec::<Step>::new(), Vec::new());
    while let Some(actions) = draw.next(lab.now().saturating_sub(began)) {
        match step(&lab, &actions, &mut draw).await {
            Ok(step) => {
                lab.say(&Outcome::line(&step));
                let whole = step.settled.is_some();
                steps.push(step);
                if !whole {
                    break;
                }
            }
            Err(error) => {
                problems.push(error.to_string());
                break;
            }
        }
    }
    let seen = match wide {
        Some(wide) if problems.is_empty() => Some(Seen::measure(&lab, wide, &steps).await?),
        _ => None,
    };
    let version = lab.cluster.lock().await.members()[0].version().to_owned();
    let challenges = settings.challenges.as_ref().map(|_| Challenges {
        sent: lab.logged(CHALLENGED),
        condemned: lab.logged(CONDEMNED),
    });
    let ready = Used::of(&lab, &mut problems).await;
    let (history, left, folder) = lab.finish().await?;
    problems.extend(left);
    let rules = Rules::new(settings.ttl)
        .election_timeout(settings.election_timeout)
        .observer_lag(OBSERVER_LAG);
    let report = check(&history, &rules);
    Ok(Outcome {
        settings: settings.clone(),
        seed: plan.seed,
        version,
        steps,
        wide: seen,
        challenges,
        ready,
        problems,
        history,
        report,
        folder,
    })
}
