//! Reads the options with which a node allows challenges, and derives those of its second session.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use eldest::{Challenges, internal};

use crate::duration::duration;
use crate::exit::{Code, fault};

const HEADING: &str = "Session";

/// The options of challenges.
#[derive(Debug, Clone, Args)]
#[group(id = "challenged")]
pub(crate) struct Allowed {
    /// Let a waiting node take over from this one when it answers nothing for that long: steady (4s) survives a change of
    /// etcd's leader, fast (400ms) does not; at least 200ms, and less than --ttl [default: only the TTL counts]
    #[arg(
        long, global = true, value_name = "steady|fast|DURATION", value_parser = preset, env = "ELDEST_CHALLENGES",
        hide_env_values = true, help_heading = HEADING
    )]
    challenges: Option<Challenges>,

    /// Give signs of life at this address, so that silence is noticed at once. `run` and `lock` listen at the next port too
    /// [default: no port]
    #[arg(
        long, global = true, value_name = "ADDRESS:PORT", env = "ELDEST_CHALLENGES_LISTEN", hide_env_values = true,
        help_heading = HEADING
    )]
    challenges_listen: Option<SocketAddr>,

    /// The address at which other nodes reach the port of --challenges-listen [default: that address]
    #[arg(
        long, global = true, value_name = "HOST:PORT", env = "ELDEST_CHALLENGES_ADVERTISE", hide_env_values = true,
        help_heading = HEADING
    )]
    challenges_advertise: Option<String>,
}

impl Allowed {
    /// Returns the challenges that a node's session allows.
    pub(crate) fn of_node(&self) -> Result<Option<Challenges>> {
        self.beside(0)
    }

    /// Returns the challenges that a second session of the same node allows, at the next port.
    #[cfg(unix)]
    pub(crate) fn of_second(&self) -> Result<Option<Challenges>> {
        self.beside(1)
    }

    /// Returns the time to answer and no port, for a session that examines.
    pub(crate) fn without_port(&self) -> Option<Challenges> {
        self.challenges.clone()
    }

    /// Returns where a node's session listens for signs of life, and the address that it advertises; then the same of a
    /// second session of that node, unless the system chooses the ports.
    pub(crate) fn ports(&self) -> Result<Vec<(SocketAddr, String)>> {
        self.of_node()?;
        let Some(listen) = self.challenges_listen else {
            return Ok(Vec::new());
        };
        let at = |distance| -> Result<(SocketAddr, String)> {
            let listen = apart(listen, distance)?;
            let advertised = self.challenges_advertise.as_ref();
            let advertised = advertised.map(|place| moved(place, distance)).transpose()?;
            Ok((listen, advertised.unwrap_or_else(|| listen.to_string())))
        };
        let mut ports = vec![at(0)?];
        if listen.port() != 0 {
            // If the next port is too high, a node with two sessions is refused.
            ports.extend(at(1).ok());
        }
        Ok(ports)
    }

    fn beside(&self, distance: u16) -> Result<Option<Challenges>> {
        let Some(mut challenges) = self.challenges.clone() else {
            let addresses = [
                ("--challenges-listen", self.challenges_listen.is_some()),
                (
                    "--challenges-advertise",
                    self.challenges_advertise.is_some(),
                ),
            ];
            return match addresses.into_iter().find(|(_, is_given)| *is_given) {
                Some((option, _)) => Err(fault(
                    Code::Usage,
                    format!("{option} is given without --challenges"),
                )),
                None => Ok(None),
            };
        };
        if let Some(address) = self.challenges_listen {
            challenges = challenges.listen(apart(address, distance)?);
        }
        if let Some(place) = &self.challenges_advertise {
            challenges = challenges.advertise(moved(place, distance)?);
        }
        Ok(Some(challenges))
    }
}

/// Returns the address at which a session listens whose port has that distance.
fn apart(mut address: SocketAddr, distance: u16) -> Result<SocketAddr> {
    // Port 0 stands for a port that the system chooses, for each session another one.
    if address.port() != 0 {
        address.set_port(next(address.port(), distance, "--challenges-listen")?);
    }
    Ok(address)
}

/// Returns the port at that distance.
fn next(port: u16, distance: u16, option: &str) -> Result<u16> {
    port.checked_add(distance).ok_or_else(|| {
        let message =
            format!("{option}: this command uses the next port too, so {port} is too high");
        fault(Code::Usage, message)
    })
}

/// Returns the place with the port at that distance. The library refuses what is no place.
fn moved(place: &str, distance: u16) -> Result<String> {
    let parsed = place.rsplit_once(':');
    let parsed = parsed.and_then(|(host, port)| Some((host, internal::number(port)?)));
    match parsed {
        Some((host, port)) => {
            let port = next(port, distance, "--challenges-advertise")?;
            Ok(format!("{host}:{port}"))
        }
        None => Ok(place.to_owned()),
    }
}

fn preset(text: &str) -> Result<Challenges, String> {
    match text {
        "steady" => Ok(Challenges::steady()),
        "fast" => Ok(Challenges::fast()),
        time => duration(time)
            .map(Challenges::answer_within)
            .map_err(|why| format!("write steady, fast or a time; {why}")),
    }
}

/// How a program under a session is ended: the parts of the session's grace period, and how often the deadline is shared.
#[cfg(unix)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// The time for killing.
    pub(crate) lead: Duration,
    pub(crate) tick: Duration,
    /// The limit of the command that follows the program.
    pub(crate) after: Duration,
}

#[cfg(unix)]
impl Pace {
    /// Returns the pace that suits the TTL, or the time to answer challenges.
    pub(crate) fn of(ttl: Duration, answer_within: Option<Duration>) -> Self {
        match answer_within {
            Some(time) => Self {
                grace: time / 20,
                lead: time / 20,
                tick: time / 40,
                after: Duration::ZERO,
            },
            None => Self {
                grace: (ttl / 5).min(Duration::from_secs(10)),
                lead: (ttl / 20).min(Duration::from_secs(2)),
                tick: ttl / 40,
                after: Duration::ZERO,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(listen: Option<&str>, advertise: Option<&str>) -> Allowed {
        Allowed {
            challenges: Some(Challenges::fast()),
            challenges_listen: listen.map(|address| address.parse().unwrap()),
            challenges_advertise: advertise.map(str::to_owned),
        }
    }

    #[test]
    fn challenges_are_presets_or_times_with_a_unit() {
        assert_eq!(preset("steady"), Ok(Challenges::steady()));
        assert_eq!(preset("fast"), Ok(Challenges::fast()));
        let second = Challenges::answer_within(Duration::from_secs(1));
        assert_eq!(preset("1s"), Ok(second));
        assert!(preset("1").unwrap_err().contains("steady, fast or a time"));
    }

    #[cfg(unix)]
    #[test]
    fn second_session_uses_the_next_port() {
        let both = allowed(Some("0.0.0.0:7400"), Some("[fd00::1]:7400"));
        let at = |listen: &str, advertise: &str| {
            let listen: SocketAddr = listen.parse().unwrap();
            Some(Challenges::fast().listen(listen).advertise(advertise))
        };
        let first = at("0.0.0.0:7400", "[fd00::1]:7400");
        assert_eq!(both.of_node().unwrap(), first);
        let second = at("0.0.0.0:7401", "[fd00::1]:7401");
        assert_eq!(both.of_second().unwrap(), second);
        let any = allowed(Some("127.0.0.1:0"), None);
        assert_eq!(any.of_node().unwrap(), any.of_second().unwrap());
        for (listen, advertise) in [("127.0.0.1:65535", None), ("127.0.0.1:1", Some("a:65535"))] {
            let last = allowed(Some(listen), advertise);
            assert!(last.of_node().is_ok());
            let error = last.of_second().unwrap_err().to_string();
            assert!(error.contains("65535 is too high"), "{error}");
        }
        assert_eq!(both.without_port(), Some(Challenges::fast()));
    }

    #[test]
    fn addresses_of_challenges_go_with_challenges() {
        for given in [
            allowed(Some("127.0.0.1:1"), None),
            allowed(None, Some("a:1")),
        ] {
            let without = Allowed {
                challenges: None,
                ..given
            };
            let error = without.of_node().unwrap_err().to_string();
            assert!(error.contains("is given without --challenges"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn programs_are_ended_within_the_grace_period_that_suits_the_session() {
        let ttl = Duration::from_secs(10);
        let pace = Pace::of(ttl, None);
        assert_eq!(
            (pace.grace, pace.lead, pace.tick),
            (ttl / 5, ttl / 20, ttl / 40)
        );
        for challenges in [Challenges::fast(), Challenges::steady()] {
            let options = eldest::SessionOptions::new("a")
                .ttl(ttl)
                .challenges(challenges);
            let times = eldest::operator::times(&options).unwrap();
            let pace = Pace::of(ttl, times.answer_within);
            assert_eq!(pace.grace + pace.lead, times.grace);
        }
    }
}
