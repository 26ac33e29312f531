//! Builds a session from options and environment variables: endpoints, user, password, TLS, names and times.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::builder::FalseyValueParser;
use eldest::{Credentials, Endpoint, Session, SessionOptions, TlsOptions, operator};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::RootCertStore;

use crate::challenges::Allowed;
pub(crate) use crate::duration::duration;
use crate::endpoints::{self, Listed};
use crate::exit::{Code, fault};
use crate::trust;
use crate::variables::PASSWORD;

const CONNECTION: &str = "Connection";
const SESSION: &str = "Session";

/// The options that reach etcd and set up a session.
#[derive(Debug, Clone, Args)]
pub(crate) struct Connection {
    /// The members of etcd, separated by commas, each with or without the name of its data centre (see --data-center).
    /// dns+URL stands for each address of the URL's host, srv://DOMAIN[/NAME] for the domain's SRV records, as etcdctl looks
    /// them up
    #[arg(
        long, global = true, value_name = "[DATA_CENTER=]URL,...", value_delimiter = ',', value_parser = Listed::parse,
        env = "ELDEST_ENDPOINTS", default_value = "http://127.0.0.1:2379", hide_env_values = true,
        help_heading = CONNECTION
    )]
    pub(crate) endpoints: Vec<Listed>,

    /// The data centre that this node is in: it prefers the endpoints of the same data centre, and announces it to the
    /// other nodes [default: it prefers the endpoint with the shortest round trip]
    #[arg(
        long, global = true, value_name = "NAME", env = "ELDEST_DATA_CENTER", hide_env_values = true,
        help_heading = CONNECTION
    )]
    pub(crate) data_center: Option<String>,

    /// Replace the endpoints by the members that etcd lists, and follow their changes
    #[arg(
        long, global = true, env = "ELDEST_FOLLOW_MEMBERS", hide_env_values = true, value_parser = FalseyValueParser::new(),
        help_heading = CONNECTION
    )]
    follow_members: bool,

    /// The etcd user; its password comes from the variable ELDEST_PASSWORD or from --password-file
    #[arg(long, global = true, env = "ELDEST_USER", hide_env_values = true, help_heading = CONNECTION)]
    user: Option<String>,

    /// The file that holds the password and nothing else; a line break at its end is ignored. Read again for each authentication
    #[arg(
        long, global = true, value_name = "FILE", env = "ELDEST_PASSWORD_FILE", hide_env_values = true,
        help_heading = CONNECTION
    )]
    password_file: Option<PathBuf>,

    /// The authorities to trust, PEM [default: those that this machine trusts]
    #[arg(
        long, global = true, value_name = "FILE", env = "ELDEST_CACERT", hide_env_values = true,
        help_heading = CONNECTION
    )]
    cacert: Option<PathBuf>,

    /// The client certificate, PEM, for members that ask for one; needs --key
    #[arg(
        long, global = true, value_name = "FILE", env = "ELDEST_CERT", hide_env_values = true,
        help_heading = CONNECTION
    )]
    cert: Option<PathBuf>,

    /// The private key of --cert, PEM
    #[arg(
        long, global = true, value_name = "FILE", env = "ELDEST_KEY", hide_env_values = true,
        help_heading = CONNECTION
    )]
    key: Option<PathBuf>,

    /// How long to retry while etcd does not answer
    #[arg(
        long, global = true, value_name = "DURATION", value_parser = duration, default_value = "5s",
        env = "ELDEST_CONNECT_TIMEOUT", hide_env_values = true, help_heading = CONNECTION
    )]
    connect_timeout: Duration,

    /// The round trip between the members, if they are far apart: it sets --ttl and --request-timeout if these are not
    /// given
    #[arg(
        long, global = true, value_name = "DURATION", value_parser = duration, env = "ELDEST_ROUND_TRIP",
        hide_env_values = true, help_heading = SESSION
    )]
    pub(crate) round_trip: Option<Duration>,

    /// How long to wait for one answer before the next member is tried [default: TTL/20, 300 ms to 2 s; with --challenges, at most
    /// a quarter of that time; with --round-trip, six round trips and 250 ms, at least 500 ms]
    #[arg(
        long, global = true, value_name = "DURATION", value_parser = duration,
        env = "ELDEST_REQUEST_TIMEOUT", hide_env_values = true, help_heading = CONNECTION
    )]
    request_timeout: Option<Duration>,

    /// The prefix of all keys; if it is empty, a name is the whole prefix of its keys
    #[arg(
        long, global = true, value_name = "PREFIX", default_value = "eldest", env = "ELDEST_NAMESPACE",
        hide_env_values = true, help_heading = SESSION
    )]
    namespace: String,

    /// How long etcd keeps the key of a node that vanished: whole seconds from 2 to 300 [default: 10s; with --round-trip, ten
    /// request timeouts, at least 15s]
    #[arg(
        long, global = true, value_name = "DURATION", value_parser = duration, env = "ELDEST_TTL",
        hide_env_values = true, help_heading = SESSION
    )]
    ttl: Option<Duration>,

    /// A node stops trusting its lease this long before the lease can expire [default: TTL/20, at most 2 s]
    #[arg(
        long, global = true, value_name = "DURATION", value_parser = duration, env = "ELDEST_MARGIN",
        hide_env_values = true, help_heading = SESSION
    )]
    margin: Option<Duration>,

    /// The largest difference between the rates of this machine's and etcd's clocks, in parts per million
    #[arg(
        long, global = true, value_name = "PPM", value_parser = crate::number::within(0..=u32::MAX), default_value_t = 1000, env = "ELDEST_CLOCK_DRIFT_PPM",
        hide_env_values = true, help_heading = SESSION
    )]
    pub(crate) clock_drift_ppm: u32,

    #[command(flatten)]
    pub(crate) allowed: Allowed,
}

impl Connection {
    /// Makes the library's options; commands add their own.
    pub(crate) fn session_options(&self, identity: &str) -> Result<SessionOptions> {
        let mut options = self
            .timed(SessionOptions::new(identity))
            .namespace(self.namespace.as_str())
            .connect_timeout(self.connect_timeout)
            .clock_drift_ppm(self.clock_drift_ppm);
        // Data centres of endpoints matter only if at least one endpoint names one.
        let named = |one: &Listed| one.data_center.is_some();
        if let Some(own) = &self.data_center
            && self.endpoints.iter().any(named)
        {
            options = options.data_center(own);
        }
        if self.follow_members {
            options = options.follow_members();
        }
        if let Some(credentials) = self.credentials()? {
            options = options.credentials(credentials);
        }
        if let Some(tls) = self.tls()? {
            options = options.tls(tls);
        }
        Ok(options)
    }

    /// Makes the options of a node's session, which may allow challenges.
    pub(crate) fn node_options(&self, identity: &str) -> Result<SessionOptions> {
        let options = self.session_options(identity)?;
        Ok(match self.allowed.of_node()? {
            Some(challenges) => options.challenges(challenges),
            None => options,
        })
    }

    /// Sets the times. Times that are given take precedence over those derived from the round trip.
    fn timed(&self, mut options: SessionOptions) -> SessionOptions {
        if let Some(round_trip) = self.round_trip {
            options = options.wan(round_trip);
        }
        if let Some(ttl) = self.ttl {
            options = options.ttl(ttl);
        }
        if let Some(timeout) = self.request_timeout {
            options = options.request_timeout(timeout);
        }
        if let Some(margin) = self.margin {
            options = options.margin(margin);
        }
        options
    }

    /// Returns the TTL that is given, else the one derived from the round trip, else the default.
    pub(crate) fn ttl(&self) -> Duration {
        operator::ttl(&self.timed(SessionOptions::new("eldest")))
    }

    /// Returns `true` if the TTL or the request timeout is given.
    pub(crate) fn has_times(&self) -> bool {
        self.ttl.is_some() || self.request_timeout.is_some()
    }

    /// Returns the endpoints without their data centres.
    #[cfg(target_os = "linux")]
    pub(crate) fn urls(&self) -> Vec<String> {
        let urls = self.endpoints.iter().map(|one| one.url.clone());
        urls.collect()
    }

    /// Returns the endpoints for a node that is a candidate or observes.
    pub(crate) fn node_endpoints(&self) -> Result<Vec<Endpoint>> {
        endpoints::for_node(&self.endpoints, self.data_center.as_deref())
    }

    /// Checks the endpoints together, and replaces each DNS name by the endpoints that it resolves to now.
    pub(crate) async fn looked_up(&self, options: &SessionOptions) -> Result<Self> {
        let named = self.endpoints.iter().map(Endpoint::from).collect();
        let found = operator::look_up(named, options.clone()).await?;
        Ok(Self {
            endpoints: found.into_iter().map(Listed::from).collect(),
            ..self.clone()
        })
    }

    /// Connects a session that only observes, so that it has no lease.
    pub(crate) async fn observer(&self) -> Result<Session> {
        let options = self.session_options("eldest")?;
        let endpoints = endpoints::for_observer(&self.endpoints, self.data_center.as_deref());
        Ok(Session::connect(endpoints, options).await?)
    }

    /// Returns a connector that speaks HTTP/2 over TLS to members, with the authorities and the certificate of
    /// sessions.
    pub(crate) fn tls_connector(&self) -> Result<TlsConnector> {
        let mut roots = RootCertStore::empty();
        match &self.cacert {
            Some(file) => trust::add_file(&mut roots, "--cacert", file)?,
            None => trust::add_system(&mut roots),
        }
        let mut config = match (&self.cert, &self.key) {
            (Some(certificate), Some(key)) => trust::client_with(roots, (certificate, key))?,
            _ => trust::client(roots)?,
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// Returns `true` if a user is given.
    pub(crate) fn has_user(&self) -> bool {
        self.user.as_deref().is_some_and(|user| !user.is_empty())
    }

    /// Returns the prefix of the keys with that name and below it, for people, or `None` for all keys of etcd.
    pub(crate) fn place(&self, below: &str) -> Option<String> {
        let levels = [self.namespace.trim_end_matches('/'), below];
        let levels: Vec<&str> = levels
            .into_iter()
            .filter(|level| !level.is_empty())
            .collect();
        let root = if self.namespace == "/" { "/" } else { "" };
        (!levels.is_empty()).then(|| format!("{root}{}/", levels.join("/")))
    }

    fn credentials(&self) -> Result<Option<Credentials>> {
        let from_variable = std::env::var_os(PASSWORD);
        let Some(user) = self.user.as_deref().filter(|_| self.has_user()) else {
            let source = match (&self.password_file, from_variable) {
                (Some(_), _) => "--password-file",
                (None, Some(_)) => PASSWORD,
                (None, None) => return Ok(None),
            };
            let message = format!("{source} is given, but no user: add --user or ELDEST_USER");
            return Err(fault(Code::Usage, message));
        };
        // The message does not repeat the value: a password may follow the colon.
        if user.contains(':') {
            let message = format!(
                "--user takes a name alone; its password comes from {PASSWORD} or --password-file"
            );
            return Err(fault(Code::Usage, message));
        }
        let credentials = match (&self.password_file, from_variable) {
            (Some(file), _) => {
                // Each authentication reads the file again; an unreadable file is reported now.
                Secret::read("--password-file", file)?;
                Credentials::from_file(user, file)
            }
            (None, Some(password)) => {
                let password = password
                    .into_string()
                    .map_err(|_| fault(Code::Usage, format!("{PASSWORD} is not UTF-8")))?;
                Credentials::new(user, password)
            }
            (None, None) => {
                let message = format!(
                    "the password of user {user:?} is missing: set {PASSWORD} or use --password-file"
                );
                return Err(fault(Code::Usage, message));
            }
        };
        Ok(Some(credentials))
    }

    fn tls(&self) -> Result<Option<TlsOptions>> {
        let given = [&self.cacert, &self.cert, &self.key];
        if given.iter().all(|file| file.is_none()) {
            return Ok(None);
        }
        let mut tls = TlsOptions::new();
        if let Some(file) = &self.cacert {
            tls = tls.authorities(file);
        }
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => tls = tls.identity(cert, key),
            (None, None) => {}
            (Some(_), None) => return Err(fault(Code::Usage, "--cert is given without --key")),
            (None, Some(_)) => return Err(fault(Code::Usage, "--key is given without --cert")),
        }
        tls.check().map_err(eldest::Error::from)?;
        Ok(Some(tls))
    }
}

/// A password or a token, which is never shown.
pub(crate) struct Secret(pub(crate) String);

impl Secret {
    /// Reads the only line of the file that an option names.
    pub(crate) fn read(option: &str, file: &Path) -> Result<Self> {
        let bytes = read(option, file)?;
        let Ok(mut text) = String::from_utf8(bytes) else {
            let message = format!("{option} {}: not UTF-8", file.display());
            return Err(fault(Code::Usage, message));
        };
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        if text.is_empty() || text.contains('\n') {
            let rule = if text.is_empty() {
                "it is empty"
            } else {
                "it has more than one line"
            };
            let message = format!("{option} {}: {rule}", file.display());
            return Err(fault(Code::Usage, message));
        }
        Ok(Self(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)")
    }
}

fn read(option: &str, file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file)
        .map_err(|error| fault(Code::Usage, format!("{option} {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret("canary".to_owned())), "Secret(...)");
    }
}
