//! Makes each connection with the user, the password and the certificates, and reads their files again for each
//! attempt.

#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
mod tls;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use etcd_client::{Client, ConnectOptions};
use serde_json::{Value, json};

use super::failure;
use super::url::Url;
use crate::runtime::Env;
use eldest_core::error::{Class, RequestError};
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
pub use tls::{InvalidTls, TlsOptions};
pub use users::Credentials;

/// The settings of every connection of a pool.
#[derive(Clone, Default)]
pub struct Access {
    options: ConnectOptions,
    credentials: Option<Credentials>,
    /// True if etcd has authentication disabled, as far as is known. All connections of the pool share it.
    without_users: Arc<AtomicBool>,
    /// True if there are TLS options, or one of the endpoints is `https`.
    demands_tls: bool,
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    tls: Option<TlsOptions>,
}

impl Access {
    /// Makes access as that user, or without a user.
    pub fn new(credentials: Option<Credentials>) -> Self {
        Self {
            credentials,
            ..Self::default()
        }
    }

    /// Connects with these certificates; with TLS options, only by TLS.
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    pub fn with_tls(mut self, tls: Option<TlsOptions>) -> Self {
        self.demands_tls |= tls.is_some();
        self.tls = tls;
        self
    }

    /// Removes the user, because etcd checks the password of every connection with a user.
    pub(super) fn without_user(mut self) -> Self {
        self.credentials = None;
        self
    }

    /// Applies the pool's settings of every connection.
    pub(super) fn map(mut self, change: impl FnOnce(ConnectOptions) -> ConnectOptions) -> Self {
        self.options = change(self.options);
        self
    }

    /// Returns `true` if no connection may be made without TLS.
    pub(super) fn demands_tls(&self) -> bool {
        self.demands_tls
    }

    /// Makes no connection without TLS from now on.
    pub(super) fn demanding_tls(mut self) -> Self {
        self.demands_tls = true;
        self
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
    /// A path is not UTF-8, or the credentials come from a provider.
    pub(super) fn passed(&self) -> Result<Value, String> {
        let credentials = self.credentials.as_ref();
        let credentials = credentials.map(Credentials::passed).transpose()?;
        #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
        let tls = self.tls.as_ref().map(TlsOptions::passed).transpose()?;
        #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
        let tls = None::<Value>;
        Ok(json!({"credentials": credentials, "tls": tls}))
    }

    /// Reads what [`Access::passed`] has returned in another process.
    pub(super) fn from_passed(passed: &Value) -> Self {
        let access = Self::new(Credentials::from_passed(&passed["credentials"]));
        #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
        let access = access.with_tls(TlsOptions::from_passed(&passed["tls"]));
        access
    }

    /// Returns `true` if connections have a user, whose token may become stale.
    pub(super) fn has_user(&self) -> bool {
        self.credentials.is_some()
    }

    /// Returns `true` if connections authenticate, as far as is known.
    pub(super) fn is_as_user(&self) -> bool {
        self.has_user() && !self.without_users.load(Ordering::Relaxed)
    }

    /// Reads the files once.
    ///
    /// # Errors
    ///
    /// A file is missing, or cannot be used; the error names the file.
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    pub async fn check(&self, env: &dyn Env) -> Result<(), String> {
        match &self.tls {
            Some(tls) => tls.read(env).await.map(drop),
            None => Ok(()),
        }
    }

    /// There are no files without TLS.
    #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
    #[allow(clippy::unused_self, reason = "with TLS there are options to ask")]
    pub fn check(&self, _: &dyn Env) -> impl Future<Output = Result<(), String>> + use<> {
        std::future::ready(Ok(()))
    }

    /// Connects to the endpoint once. Its certificate must be valid for the server name, or for the endpoint's host if
    /// there is none. Where etcd has authentication disabled, it connects without the user.
    ///
    /// # Errors
    ///
    /// The connection fails, etcd refuses the user, or a file cannot be used; nothing was sent then.
    pub(super) async fn connect(
        mut self,
        env: &dyn Env,
        (url, server_name): (Url, Option<String>),
    ) -> Result<Client, RequestError> {
        let endpoint = &*url.to_string();
        let unusable = |why| RequestError::new(Class::Retry, why, endpoint).unsent();
        let options = self.options(env, url.is_secure(), server_name).await;
        let options = options.map_err(unusable)?;
        let connect = |options| async {
            let client = env.connect(endpoint.to_owned(), options).await;
            client.map_err(|error| (failure::is_without_users(&error), error))
        };
        let failed = |(_, error): (bool, _)| failure::from_error(&error, endpoint).unsent();
        let Some(credentials) = self.credentials.take() else {
            return connect(options).await.map_err(failed);
        };
        let (user, password) = credentials.now(env).await.map_err(unusable)?;
        let with_user = options.clone().with_user(user.clone(), password);
        match connect(with_user).await {
            Err((true, _)) => {
                if !self.without_users.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        target: "eldest::etcd", endpoint, user,
                        "etcd has authentication disabled: connecting without the user"
                    );
                }
                connect(options).await.map_err(failed)
            }
            Ok(client) => {
                if self.without_users.swap(false, Ordering::Relaxed) {
                    tracing::info!(target: "eldest::etcd", endpoint, user, "etcd has authentication enabled again");
                }
                Ok(client)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns the options for one attempt to connect to the endpoint, without the user.
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    async fn options(
        &mut self,
        env: &dyn Env,
        secure: bool,
        server_name: Option<String>,
    ) -> Result<ConnectOptions, String> {
        let options = std::mem::take(&mut self.options);
        if !secure {
            // No endpoint of the list is `https`; this holds for a list from any source.
            return if self.demands_tls {
                Err("no connection is made without TLS".to_owned())
            } else {
                Ok(options)
            };
        }
        let tls = self.tls.take().unwrap_or_default();
        let tls = tls.or_server_name(server_name);
        Ok(options.with_tls(tls.read(env).await?))
    }

    /// Returns the options for one attempt to connect to the endpoint, without the user.
    #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
    fn options(
        &mut self,
        _: &dyn Env,
        _: bool,
        _: Option<String>,
    ) -> impl Future<Output = Result<ConnectOptions, String>> + use<> {
        std::future::ready(Ok(std::mem::take(&mut self.options)))
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
