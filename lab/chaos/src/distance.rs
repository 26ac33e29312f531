//! Measures the effects of distance on a run across data centres, and reports them.

use std::fmt;
use std::time::Duration;

use eldest_testing::history::{History, What};
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::ledger::Ledger;
use crate::plan::{CRASH, HAND_OVER};
use crate::step::Step;
use crate::wide::Wide;
use crate::wire::{CLIENTS, Traffic};
use crate::{Result, Settings};

/// Results of a run across distant data centres, beside those of every run.
#[derive(Debug)]
pub(crate) struct Seen {
    wide: Wide,
    /// The shortest round trip between data centres, measured.
    round_trip: Duration,
    /// The terms that no step ended.
    lost: Vec<String>,
    /// The number of etcd's own elections while no fault was made.
    elections: u64,
    traffic: Traffic,
}

/// How long there was no leader.
struct Takeover {
    fault: &'static str,
    /// The time since the leader was asked to end, or killed.
    asked: Duration,
    /// The time since its work had ended and the key was about to be deleted; `None` if it was killed.
    released: Option<Duration>,
}

impl Seen {
    /// Measures a quiet period, and what happened during those steps.
    pub(crate) async fn measure(lab: &Lab, far: &Wide, steps: &[Step]) -> Result<Self> {
        let wire = lab.wire.as_ref().ok_or("there is no wire")?;
        let began = raft_term(lab).await?;
        lab.say(&format!("now nothing else happens for {:?}", far.quiet));
        lab.pass(far.quiet).await?;
        lab.settled().await?;
        let sites = wire.sites().len();
        let mut round_trips = Vec::new();
        for from in 0..sites {
            round_trips.push(wire.round_trip(from, (from + 1) % sites, CLIENTS)?);
        }
        let lost = lost(&*lab.ledger()?, steps);
        Ok(Self {
            wide: far.clone(),
            round_trip: round_trips.into_iter().min().unwrap_or_default(),
            lost,
            elections: raft_term(lab).await?.saturating_sub(began),
            traffic: wire.traffic()?,
        })
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.lost.clone();
        let shortest = (self.wide.round_trip).saturating_sub(self.wide.jitter * 2);
        if self.round_trip < shortest {
            problems.push(format!("a round trip took only {:?}", self.round_trip));
        }
        problems
    }

    /// Returns each required event, how often it happened, and how often it must happen.
    pub(crate) fn wanted(&self, steps: &[Step]) -> Vec<(&'static str, usize, usize)> {
        let of = |fault: &str| {
            let changes = steps
                .iter()
                .filter(|step| step.name() == fault && step.changed());
            changes.count()
        };
        let lossy = usize::from(self.wide.loss > 0.0);
        let Traffic {
            carried,
            lost,
            retransmitted,
        } = self.traffic;
        vec![
            ("orderly hand-overs", of(HAND_OVER), self.wide.rounds),
            ("takeovers after a crash", of(CRASH), self.wide.rounds),
            ("packets carried", carried as usize, 1),
            ("packets lost", lost as usize, lossy),
            ("segments sent again", retransmitted as usize, lossy),
        ]
    }

    pub(crate) fn json(&self, steps: &[Step], history: &History) -> Value {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let takeovers: Vec<Value> = takeovers(steps, history)
            .map(|takeover| {
                json!({
                    "fault": takeover.fault,
                    "ms": millis(takeover.asked),
                    "after_release_ms": takeover.released.map(millis),
                })
            })
            .collect();
        json!({
            "round_trip_ms": millis(self.wide.round_trip),
            "round_trip_measured_ms": millis(self.round_trip),
            "jitter_ms": millis(self.wide.jitter),
            "loss": self.wide.loss,
            "preset": self.wide.preset,
            "near": self.wide.near,
            "quiet_s": self.wide.quiet.as_secs_f64(),
            "takeovers": takeovers,
            "terms_lost": self.lost.len(),
            "etcd_elections_while_quiet": self.elections,
            "packets_carried": self.traffic.carried,
            "packets_lost": self.traffic.lost,
            "segments_sent_again": self.traffic.retransmitted,
        })
    }

    /// Writes the figures for people.
    pub(crate) fn write_text(
        &self,
        f: &mut fmt::Formatter<'_>,
        settings: &Settings,
        steps: &[Step],
        history: &History,
    ) -> fmt::Result {
        let wide = &self.wide;
        let setup = if wide.preset {
            format!("set up by wan({:?})", wide.round_trip)
        } else {
            "set up by their TTL alone".to_owned()
        };
        let near = if wide.near {
            ""
        } else {
            ", without a server near them"
        };
        writeln!(
            f,
            "data centres {:?} from each other (measured: {:.1?}), jitter {:?}, {} % of packets lost; nodes {setup}{near}, etcd \
             with heartbeats every {:?} and an election timeout of {:?}",
            wide.round_trip,
            self.round_trip,
            wide.jitter,
            wide.loss * 100.0,
            settings.heartbeat,
            settings.election_timeout,
        )?;
        for takeover in takeovers(steps, history) {
            let asked = takeover.asked.as_secs_f64();
            match takeover.released {
                Some(released) => writeln!(
                    f,
                    "hand-over: the next one led {:.0} ms after the leader was asked to end, {:.0} ms or {:.1} round trips \
                     after it gave its key back",
                    asked * 1e3,
                    released.as_secs_f64() * 1e3,
                    released.div_duration_f64(wide.round_trip),
                )?,
                None => writeln!(
                    f,
                    "crash: the next one led after {asked:.2} s, {:.2} TTLs or {:.0} round trips",
                    takeover.asked.div_duration_f64(settings.ttl),
                    takeover.asked.div_duration_f64(wide.round_trip),
                )?,
            }
        }
        writeln!(
            f,
            "then {:?} of nothing else: etcd changed its leader {} times; {} terms ended that nobody ended",
            wide.quiet,
            self.elections,
            self.lost.len(),
        )?;
        let Traffic {
            carried,
            lost,
            retransmitted,
        } = self.traffic;
        writeln!(
            f,
            "{carried} packets carried, {lost} lost, {retransmitted} segments sent again"
        )
    }
}

/// Returns the terms that ended, except those that the steps ended.
fn lost(ledger: &Ledger, steps: &[Step]) -> Vec<String> {
    let ended = ledger.ended().filter(|(_, token)| {
        let mut asked = steps.iter().map(|step| step.token);
        asked.all(|asked| asked != *token)
    });
    let describe = |(node, token): (&str, i64)| {
        let mut reasons = ledger
            .events()
            .iter()
            .filter_map(|event| match &event.what {
                What::LostToken { token: of, reason } if *of == token => Some(reason.as_str()),
                _ => None,
            });
        let reason = reasons.next().unwrap_or("unknown");
        format!("{node} lost its term with token {token}, and nobody had ended it: {reason}")
    };
    ended.map(describe).collect()
}

fn takeovers(steps: &[Step], history: &History) -> impl Iterator<Item = Takeover> {
    steps.iter().filter_map(|step| {
        let fault = step.cards.first()?.name;
        let mut after = history.events().iter().filter(|event| event.at > step.from);
        let released =
            |what: &What| matches!(what, What::Released { token } if *token == step.token);
        let released = after.clone().find(|event| released(&event.what));
        let elected = after.find(|event| matches!(event.what, What::Elected { .. }))?;
        let since = |time: Duration| elected.at.saturating_sub(time);
        let (asked, released) = match fault {
            HAND_OVER => (since(step.from), Some(since(released?.at))),
            CRASH => (since(step.applied), None),
            _ => return None,
        };
        Some(Takeover {
            fault,
            asked,
            released,
        })
    })
}

async fn raft_term(lab: &Lab) -> Result<u64> {
    let asked = lab.operate("etcd's term is asked for", async |mut client| {
        Ok(client.status().await?.raft_term())
    });
    asked.await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::step;

    #[test]
    fn only_terms_that_no_step_ended_are_reported_as_lost() -> Result {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("n");
        let line = |at: u64, token: i64, what: &str| {
            let term = format!(r#""at":{at},"node":"n","election":"e","token":{token}"#);
            format!("{{{term},{what}}}\n")
        };
        let (elected, valid) = (r#""what":"elected""#, r#""what":"valid""#);
        let lost_token = r#""what":"lost_token","reason":"lease_expiring""#;
        let lines = [
            line(1, 1, elected),
            line(2, 1, lost_token),
            line(3, 7, elected),
            line(4, 7, lost_token),
            line(5, 9, elected),
            line(6, 9, valid),
        ];
        std::fs::write(&path, lines.concat())?;
        let mut ledger = Ledger::default();
        ledger.follow(path);
        ledger.refresh()?;
        // A step ended the first term; the last one continues.
        let lost_terms = lost(&ledger, &[step(HAND_OVER)]);
        assert_eq!(lost_terms.len(), 1, "{lost_terms:?}");
        assert!(
            lost_terms[0].contains("token 7") && lost_terms[0].contains("lease_expiring"),
            "{lost_terms:?}"
        );
        Ok(())
    }

    #[test]
    fn required_effects_of_distance_are_demanded() {
        let mut seen = Seen {
            wide: Wide::new(Duration::from_millis(120), 0.05),
            round_trip: Duration::from_millis(121),
            lost: Vec::new(),
            elections: 0,
            traffic: Traffic::default(),
        };
        let short = |seen: &Seen, steps: &[Step]| {
            let wanted = seen.wanted(steps).into_iter();
            wanted.filter(|(_, found, least)| found < least).count()
        };
        assert_eq!(short(&seen, &[]), 5, "nothing happened");
        assert_eq!(short(&seen, &[step(HAND_OVER), step(CRASH)]), 3);
        seen.traffic = Traffic {
            carried: 9,
            lost: 1,
            retransmitted: 1,
        };
        assert_eq!(short(&seen, &[step(HAND_OVER), step(CRASH)]), 0);
        assert_eq!(seen.problems(), [""; 0]);
        seen.round_trip /= 2;
        assert_eq!(seen.problems().len(), 1, "it was not so far");
    }
}
