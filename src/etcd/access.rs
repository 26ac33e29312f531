//! Supplies each connection with the user, the password and the certificates, and reads certificate files again for
//! each attempt to connect.

#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
mod tls;

use std::fmt;

use etcd_client::ConnectOptions;
use serde_json::{Value, json};

use crate::runtime::Env;
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
pub use tls::TlsOptions;

/// A user of etcd and the password, for [`SessionOptions::credentials`](crate::SessionOptions::credentials).
///
/// Its `Debug` output leaves the password out.
#[must_use = "credentials do nothing until a session is made with them"]
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    /// Makes credentials of a user and a password.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
        }
    }

    /// Returns the user's name.
    pub fn user(&self) -> &str {
        &self.user
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The settings of every connection of a pool.
#[derive(Clone, Default)]
pub(crate) struct Access {
    options: ConnectOptions,
    credentials: Option<Credentials>,
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    tls: Option<TlsOptions>,
}

impl Access {
    pub(crate) fn new(credentials: Option<Credentials>) -> Self {
        Self {
            credentials,
            ..Self::default()
        }
    }

    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    pub(crate) fn with_tls(mut self, tls: Option<TlsOptions>) -> Self {
        self.tls = tls;
        self
    }

    /// Leaves the user out. etcd checks the password of every connection with a user.
    pub(super) fn without_user(mut self) -> Self {
        self.credentials = None;
        self
    }

    /// Applies the pool's settings of every connection.
    pub(super) fn map(mut self, change: impl FnOnce(ConnectOptions) -> ConnectOptions) -> Self {
        self.options = change(self.options);
        self
    }

    /// Returns `true` if more than an endpoint's scheme asks for TLS.
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    pub(super) fn demands_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns `true` if more than an endpoint's scheme asks for TLS.
    #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
    #[allow(clippy::unused_self)] // as with the feature
    pub(super) fn demands_tls(&self) -> bool {
        false
    }

    /// Returns `true` if the authorities to trust are known.
    #[cfg_attr(
        not(any(feature = "tls-ring", feature = "tls-aws-lc")),
        allow(
            clippy::unused_self,
            reason = "without TLS there are no options to ask"
        )
    )]
    pub(super) fn knows_authorities(&self) -> bool {
        let built_in = cfg!(any(
            feature = "tls-native-roots",
            feature = "tls-webpki-roots"
        ));
        #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
        let named = self.tls.as_ref().is_some_and(TlsOptions::has_authorities);
        #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
        let named = false;
        built_in || named
    }

    /// Returns the user, the password and the certificates for another process.
    ///
    /// # Errors
    ///
    /// A path is not UTF-8.
    #[cfg_attr(
        not(any(feature = "tls-ring", feature = "tls-aws-lc")),
        allow(clippy::unnecessary_wraps, reason = "without TLS there are no paths")
    )]
    pub(super) fn passed(&self) -> Result<Value, String> {
        let user = self.credentials.as_ref();
        let credentials = user.map(|of| json!({"user": of.user, "password": of.password}));
        #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
        let tls = self.tls.as_ref().map(TlsOptions::passed).transpose()?;
        #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
        let tls = None::<Value>;
        Ok(json!({"credentials": credentials, "tls": tls}))
    }

    /// Reads what [`Access::passed`] has returned in another process.
    pub(super) fn from_passed(passed: &Value) -> Self {
        let text = |value: &Value| Some(value.as_str()?.to_owned());
        let credentials = &passed["credentials"];
        let user = text(&credentials["user"]).zip(text(&credentials["password"]));
        let access = Self::new(user.map(|(user, password)| Credentials::new(user, password)));
        #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
        let access = access.with_tls(TlsOptions::from_passed(&passed["tls"]));
        access
    }

    fn with_user(self) -> ConnectOptions {
        match self.credentials {
            Some(Credentials { user, password }) => self.options.with_user(user, password),
            None => self.options,
        }
    }

    /// Returns the options for one attempt to connect to that endpoint, whose certificate must be valid for the server name,
    /// or for the endpoint's host if there is none.
    ///
    /// # Errors
    ///
    /// Says which file cannot be used, and why.
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    pub(super) async fn now(
        mut self,
        env: &dyn Env,
        (endpoint, server_name): (&str, Option<&str>),
    ) -> Result<ConnectOptions, String> {
        if !endpoint.starts_with("https:") {
            return Ok(self.with_user());
        }
        let tls = self.tls.take().unwrap_or_default();
        let tls = tls.or_server_name(server_name);
        let tls = tls.read(env).await?;
        Ok(self.with_user().with_tls(tls))
    }

    /// Returns the options for one attempt to connect to that endpoint.
    #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
    pub(super) fn now(
        self,
        _: &dyn Env,
        _: (&str, Option<&str>),
    ) -> impl Future<Output = Result<ConnectOptions, String>> + use<> {
        std::future::ready(Ok(self.with_user()))
    }
}

#[cfg(test)]
impl From<ConnectOptions> for Access {
    fn from(options: ConnectOptions) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }
}
