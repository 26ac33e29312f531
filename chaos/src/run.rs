//! Hides how a run goes from its first step to its verdict.

use eldest::testing::history::{Rules, check};

use crate::lab::Lab;
use crate::plan::Draw;
use crate::step::{Step, step};
use crate::{Outcome, Plan, Result, Settings};

/// Does what the plan says, and judges what was recorded.
///
/// # Errors
///
/// The cluster or the nodes did not start, or what they recorded cannot be read.
pub async fn run(settings: &Settings, plan: &Plan) -> Result<Outcome> {
    let lab = Lab::start(settings).await?;
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
    let version = lab.cluster.lock().await.members()[0].version().to_owned();
    let (history, left) = lab.finish().await?;
    problems.extend(left);
    let report = check(&history, &Rules::new(settings.ttl));
    Ok(Outcome {
        settings: settings.clone(),
        seed: plan.seed,
        version,
        steps,
        problems,
        history,
        report,
    })
}
