//! Reads a session's options from a program's configuration.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::{Challenges, SessionOptions};
use crate::state::Announcement;
use eldest_etcd::Credentials;
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
use eldest_etcd::TlsOptions;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "SessionOptions")]
struct Config {
    identity: String,
    namespace: Option<String>,
    ttl_ms: Option<u64>,
    margin_ms: Option<u64>,
    grace_ms: Option<u64>,
    request_timeout_ms: Option<u64>,
    connect_timeout_ms: Option<u64>,
    clock_drift_ppm: Option<u32>,
    announcement: Option<Announcement>,
    data_center: Option<String>,
    #[serde(default)]
    follow_members: bool,
    challenges: Option<Allowed>,
    challenges_listen: Option<SocketAddr>,
    challenges_advertise: Option<String>,
    credentials: Option<Account>,
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    tls: Option<Files>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", rename = "Challenges")]
enum Allowed {
    Steady,
    Fast,
    AnswerWithinMs(u64),
}

impl Config {
    fn challenges(&mut self) -> Result<Option<Challenges>, &'static str> {
        let (listen, advertise) = (self.challenges_listen, self.challenges_advertise.take());
        let Some(mut challenges) = self.challenges.take().map(Challenges::from) else {
            return match (listen, advertise) {
                (None, None) => Ok(None),
                _ => Err("`challenges_listen` and `challenges_advertise` go with `challenges`"),
            };
        };
        if let Some(address) = listen {
            challenges = challenges.listen(address);
        }
        if let Some(address) = advertise {
            challenges = challenges.advertise(address);
        }
        Ok(Some(challenges))
    }
}

impl From<Allowed> for Challenges {
    fn from(allowed: Allowed) -> Self {
        match allowed {
            Allowed::Steady => Self::steady(),
            Allowed::Fast => Self::fast(),
            Allowed::AnswerWithinMs(ms) => Self::answer_within(Duration::from_millis(ms)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Credentials")]
struct Account {
    user: String,
    password: Option<String>,
    password_file: Option<std::path::PathBuf>,
}

impl Account {
    fn credentials(self) -> Result<Credentials, &'static str> {
        match (self.password, self.password_file) {
            (Some(password), None) => Ok(Credentials::new(self.user, password)),
            (None, Some(file)) => Ok(Credentials::from_file(self.user, file)),
            _ => Err("credentials: either `password` or `password_file` goes with `user`"),
        }
    }
}

#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "TlsOptions")]
struct Files {
    authorities: Option<std::path::PathBuf>,
    certificate: Option<std::path::PathBuf>,
    key: Option<std::path::PathBuf>,
    server_name: Option<String>,
}

#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
impl Files {
    fn options(self) -> Result<TlsOptions, &'static str> {
        let mut tls = TlsOptions::new();
        if let Some(authorities) = self.authorities {
            tls = tls.authorities(authorities);
        }
        match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => tls = tls.identity(certificate, key),
            (None, None) => {}
            _ => return Err("tls: a certificate needs its key, and a key its certificate"),
        }
        if let Some(name) = self.server_name {
            tls = tls.server_name(name);
        }
        Ok(tls)
    }
}

impl<'de> Deserialize<'de> for SessionOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut read = Config::deserialize(deserializer)?;
        let challenges = read.challenges().map_err(serde::de::Error::custom)?;
        let (ms, default) = (Duration::from_millis, SessionOptions::new(read.identity));
        Ok(SessionOptions {
            namespace: read.namespace.unwrap_or(default.namespace),
            ttl: read.ttl_ms.map_or(default.ttl, ms),
            margin: read.margin_ms.map(ms),
            grace: read.grace_ms.map(ms),
            request_timeout: read.request_timeout_ms.map(ms),
            connect_timeout: read.connect_timeout_ms.map_or(default.connect_timeout, ms),
            clock_drift_ppm: read.clock_drift_ppm.unwrap_or(default.clock_drift_ppm),
            announcement: read.announcement,
            data_center: read.data_center,
            follow_members: read.follow_members,
            challenges,
            credentials: (read.credentials.map(Account::credentials).transpose())
                .map_err(serde::de::Error::custom)?,
            #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
            tls: (read.tls.map(Files::options).transpose()).map_err(serde::de::Error::custom)?,
            ..default
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn read(config: Value) -> Result<SessionOptions, String> {
        from_value(config).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read_from_configuration() {
        let mut default = read(json!({"identity": "a"})).unwrap();
        assert_eq!(default.ttl, Duration::from_secs(10));
        assert_eq!(default.namespace, "eldest");
        default = read(json!({
            "identity": "a", "namespace": "x", "ttl_ms": 5000, "margin_ms": 1, "grace_ms": 2, "request_timeout_ms": 300,
            "connect_timeout_ms": 4, "clock_drift_ppm": 5, "announcement": {"address": "a:1"},
            "data_center": "eu", "follow_members": true, "credentials": {"user": "u", "password": "p"},
        }))
        .unwrap();
        assert_eq!(default.namespace, "x");
        let times = [default.ttl, default.connect_timeout].map(|time| time.as_millis());
        assert_eq!(times, [5000, 4]);
        let times = [default.margin, default.grace, default.request_timeout];
        assert_eq!(times.map(|time| time.unwrap().as_millis()), [1, 2, 300]);
        assert_eq!(default.clock_drift_ppm, 5);
        assert_eq!(default.announcement.unwrap().address(), Some("a:1"));
        assert_eq!(default.data_center.as_deref(), Some("eu"));
        assert!(default.follow_members);
        assert_eq!(default.credentials.unwrap().user(), Some("u"));
    }

    #[test]
    fn challenges_are_read_by_preset_or_time() {
        let with = |challenges: Value| {
            let options = read(json!({"identity": "a", "challenges": challenges})).unwrap();
            options.challenges.unwrap()
        };
        assert_eq!(with(json!("steady")), Challenges::steady());
        assert_eq!(with(json!("fast")), Challenges::fast());
        let second = Challenges::answer_within(Duration::from_secs(1));
        assert_eq!(with(json!({"answer_within_ms": 1000})), second);
    }

    #[test]
    fn addresses_of_challenges_are_read_and_go_with_challenges() {
        let (listen, advertise) = ("0.0.0.0:7400", "node-a:7400");
        let options = read(json!({
            "identity": "a", "challenges": "fast", "challenges_listen": listen, "challenges_advertise": advertise,
        }));
        let challenges = Challenges::fast()
            .listen(([0, 0, 0, 0], 7400))
            .advertise(advertise);
        assert_eq!(options.unwrap().challenges, Some(challenges));
        for (name, address) in [
            ("challenges_listen", listen),
            ("challenges_advertise", advertise),
        ] {
            let error = read(json!({"identity": "a", name: address})).unwrap_err();
            assert!(error.contains("go with `challenges`"), "{error}");
        }
        let error = read(json!({"identity": "a", "challenges": "fast", "challenges_listen": "x"}));
        assert!(error.unwrap_err().contains("socket address"));
    }

    #[test]
    fn credentials_have_a_password_or_the_file_that_holds_it() {
        let with = |credentials: Value| read(json!({"identity": "a", "credentials": credentials}));
        let file = with(json!({"user": "u", "password_file": "/run/secrets/etcd"})).unwrap();
        let shown = format!("{:?}", file.credentials.unwrap());
        assert!(shown.contains("/run/secrets/etcd"), "{shown}");
        for wrong in [
            json!({"user": "u"}),
            json!({"user": "u", "password": "p", "password_file": "f"}),
        ] {
            let error = with(wrong).unwrap_err();
            assert!(error.contains("password_file"), "{error}");
        }
    }

    #[test]
    fn a_name_that_is_no_option_is_an_error() {
        let error = read(json!({"identity": "a", "tll_ms": 5000})).unwrap_err();
        assert!(error.contains("tll_ms"), "{error}");
        assert!(read(json!({})).unwrap_err().contains("identity"));
    }

    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    #[test]
    fn certificates_are_read_as_files() {
        let files = json!({"authorities": "ca.pem", "certificate": "a.pem", "key": "a.key", "server_name": "etcd"});
        let read_tls = |tls: Value| read(json!({"identity": "a", "tls": tls}));
        let tls = TlsOptions::new().authorities("ca.pem");
        let tls = tls.identity("a.pem", "a.key").server_name("etcd");
        assert_eq!(read_tls(files).unwrap().tls, Some(tls));
        let error = read_tls(json!({"certificate": "a.pem"})).unwrap_err();
        assert!(error.contains("needs its key"), "{error}");
    }
}
