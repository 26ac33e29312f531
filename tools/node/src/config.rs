//! Reads the node's settings from environment variables.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use eldest::{Challenges, Credentials};

/// The settings of a node.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// `ETCD_ENDPOINTS`: all members of etcd, separated by commas.
    pub(crate) endpoints: Vec<String>,
    /// `ETCD_USER` and `ETCD_PASSWORD`: the credentials, if etcd has users; optional.
    pub(crate) credentials: Option<Credentials>,
    /// `NODE_NAME`; by default the host's name.
    pub(crate) name: String,
    /// `DATA_CENTER`: where the node runs; optional.
    pub(crate) data_center: Option<String>,
    /// `ELECTION`; by default `demo`.
    pub(crate) election: String,
    /// `TTL_SECONDS`: how long the lease lives without a renewal; by default 5.
    pub(crate) ttl: Duration,
    /// `ROUND_TRIP_SECONDS`: the round trip to the members; it sets TTL and timeouts, and `TTL_SECONDS` is ignored.
    /// Optional.
    pub(crate) round_trip: Option<Duration>,
    /// `GUARD`: the socket of an agent, which guards the node as soon as the agent runs; optional.
    pub(crate) guard: Option<PathBuf>,
    /// `CHALLENGES`: `steady` or `fast`, if the others may challenge the node; optional. `CHALLENGES_LISTEN` and
    /// `CHALLENGES_ADVERTISE`: the address of its signs of life, and the one at which the others reach it.
    pub(crate) challenges: Option<Challenges>,
    /// `READY_SECONDS`: how long a leader takes until it serves, and the next leader or owner until it is warm. The node
    /// then shares partitions, too, keeps its share, and requires a version. Optional.
    pub(crate) ready: Option<Duration>,
    /// `LISTEN`: the address for HTTP; by default `0.0.0.0:8080`.
    pub(crate) listen: String,
    /// `ADVERTISE`: the address that the node announces to the others; by default `http://NODE_NAME:8080`.
    pub(crate) advertise: String,
    /// `HISTORY`: the file for the history, if the program was built with the feature `history`.
    pub(crate) history: Option<PathBuf>,
    /// `HISTORY_NAME`: the node's name in the history, for two nodes with the same name; by default `NODE_NAME`.
    #[cfg_attr(
        not(any(feature = "history", test)),
        expect(dead_code, reason = "nobody writes")
    )]
    pub(crate) history_name: String,
    /// `PACE_SECONDS`: how often a leader raises the counter; by default 1.
    pub(crate) pace: Duration,
    /// `REGISTER`: the database file of the second counter, if the program was built with the feature `register`.
    #[cfg_attr(
        not(any(feature = "register", test)),
        expect(dead_code, reason = "nobody counts there")
    )]
    pub(crate) register: Option<PathBuf>,
    /// `REGISTER_FENCED`: `no` leaves the second counter unguarded, to show the consequences.
    #[cfg_attr(
        not(any(feature = "register", test)),
        expect(dead_code, reason = "nobody counts there")
    )]
    pub(crate) register_fenced: bool,
    /// `ORDERS`: the socket at which the node receives orders to damage itself, if the program was built with the
    /// feature `orders`.
    #[cfg_attr(
        not(any(feature = "orders", test)),
        expect(dead_code, reason = "nobody gives any")
    )]
    pub(crate) orders: Option<PathBuf>,
}

impl Config {
    pub(crate) fn from_env() -> Result<Self> {
        Self::from(|name| std::env::var(name).ok())
    }

    /// An empty variable counts as missing: compose files pass them on like that.
    fn from(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let endpoints = variable("ETCD_ENDPOINTS")
            .context("ETCD_ENDPOINTS names no member of etcd, such as http://etcd1:2379")?;
        let endpoints: Vec<String> = endpoints
            .split(',')
            .map(|endpoint| endpoint.trim().to_owned())
            .collect();
        let name = variable("NODE_NAME")
            .or_else(host_name)
            .context("NODE_NAME is not set, and this host tells no name")?;
        let ttl = seconds(variable("TTL_SECONDS"), "TTL_SECONDS", 5.0, 1.0..=300.0)?;
        let pace = seconds(variable("PACE_SECONDS"), "PACE_SECONDS", 1.0, 0.01..=60.0)?;
        let round_trip = variable("ROUND_TRIP_SECONDS")
            .map(|text| seconds(Some(text), "ROUND_TRIP_SECONDS", 0.0, 0.0..=5.0))
            .transpose()?;
        let ready = variable("READY_SECONDS")
            .map(|text| seconds(Some(text), "READY_SECONDS", 0.0, 0.0..=60.0))
            .transpose()?;
        let fenced = variable("REGISTER_FENCED").unwrap_or_else(|| "yes".to_owned());
        ensure!(
            ["yes", "no"].contains(&fenced.as_str()),
            "REGISTER_FENCED={fenced} is neither yes nor no"
        );
        let user = variable("ETCD_USER").map(|user| {
            let password = variable("ETCD_PASSWORD").context("ETCD_USER needs ETCD_PASSWORD")?;
            anyhow::Ok(Credentials::new(user, password))
        });
        Ok(Self {
            endpoints,
            credentials: user.transpose()?,
            data_center: variable("DATA_CENTER"),
            election: variable("ELECTION").unwrap_or_else(|| "demo".to_owned()),
            ttl,
            round_trip,
            pace,
            guard: variable("GUARD").map(PathBuf::from),
            challenges: challenges(variable)?,
            ready,
            listen: variable("LISTEN").unwrap_or_else(|| "0.0.0.0:8080".to_owned()),
            advertise: variable("ADVERTISE").unwrap_or_else(|| format!("http://{name}:8080")),
            history: variable("HISTORY").map(PathBuf::from),
            history_name: variable("HISTORY_NAME").unwrap_or_else(|| name.clone()),
            register: variable("REGISTER").map(PathBuf::from),
            register_fenced: fenced == "yes",
            orders: variable("ORDERS").map(PathBuf::from),
            name,
        })
    }
}

fn challenges(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Challenges>> {
    let Some(level) = variable("CHALLENGES") else {
        return Ok(None);
    };
    let mut challenges = match &*level {
        "steady" => Challenges::steady(),
        "fast" => Challenges::fast(),
        _ => bail!("CHALLENGES={level} is neither steady nor fast"),
    };
    if let Some(address) = variable("CHALLENGES_LISTEN") {
        let parsed = address.parse::<SocketAddr>();
        challenges =
            challenges.listen(parsed.with_context(|| {
                format!("CHALLENGES_LISTEN={address} is no address with a port")
            })?);
    }
    if let Some(address) = variable("CHALLENGES_ADVERTISE") {
        challenges = challenges.advertise(address);
    }
    Ok(Some(challenges))
}

fn seconds(
    text: Option<String>,
    name: &str,
    default: f64,
    range: RangeInclusive<f64>,
) -> Result<Duration> {
    let seconds = match text {
        Some(text) => text
            .parse()
            .with_context(|| format!("{name}={text} is no number"))?,
        None => default,
    };
    ensure!(
        range.contains(&seconds),
        "{name}={seconds} is not between {} and {}",
        range.start(),
        range.end()
    );
    Ok(Duration::from_secs_f64(seconds))
}

fn host_name() -> Option<String> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel.or_else(|| std::env::var("HOSTNAME").ok())?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(set: &[(&str, &str)]) -> Result<Config> {
        Config::from(|name| {
            let found = set.iter().find(|(set, _)| *set == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn unset_variable_has_a_default() {
        let endpoints = ("ETCD_ENDPOINTS", "http://a:2379, http://b:2379");
        let config = config(&[endpoints, ("NODE_NAME", "n"), ("DATA_CENTER", "")]).unwrap();
        assert_eq!(config.endpoints, ["http://a:2379", "http://b:2379"]);
        assert_eq!(
            (config.election.as_str(), config.data_center),
            ("demo", None)
        );
        assert_eq!(config.ttl, Duration::from_secs(5));
        assert_eq!(
            (config.pace, config.round_trip),
            (Duration::from_secs(1), None)
        );
        assert_eq!((config.history_name.as_str(), config.register), ("n", None));
        assert!(config.register_fenced && config.orders.is_none());
        assert_eq!((config.guard, config.challenges), (None, None));
        assert_eq!(config.ready, None);
        assert_eq!(
            (config.listen.as_str(), config.advertise.as_str()),
            ("0.0.0.0:8080", "http://n:8080")
        );
    }

    #[test]
    fn invalid_setting_is_refused_by_name() {
        let refused = |set: &[(&str, &str)]| config(set).unwrap_err().to_string();
        assert!(refused(&[]).contains("ETCD_ENDPOINTS"));
        for ttl in ["soon", "0", "NaN", "-1", "301"] {
            let message = refused(&[
                ("ETCD_ENDPOINTS", "http://a:1"),
                ("NODE_NAME", "n"),
                ("TTL_SECONDS", ttl),
            ]);
            assert!(message.contains("TTL_SECONDS"), "{message}");
        }
        let node = [("ETCD_ENDPOINTS", "http://a:1"), ("NODE_NAME", "n")];
        for (name, value) in [
            ("PACE_SECONDS", "0"),
            ("ROUND_TRIP_SECONDS", "far"),
            ("REGISTER_FENCED", "maybe"),
            ("ETCD_USER", "somebody"),
            ("CHALLENGES", "often"),
            ("READY_SECONDS", "-1"),
        ] {
            let message = refused(&[&node[..], &[(name, value)]].concat());
            assert!(message.contains(name), "{message}");
        }
    }
}
