//! Holds a user of etcd with the password, or knows where to find them.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::Env;

/// Any error of a provider.
type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A user of etcd and the password, for `SessionOptions::credentials`.
///
/// Every connection that the session makes authenticates once, and again when etcd no longer accepts its token, because
/// the token has expired, or users or roles have changed. With [`from_file`](Self::from_file) and
/// [`from_provider`](Self::from_provider) each authentication uses the password of that moment: rotate it, and no
/// process has to be restarted. While etcd refuses the password, a session that had a lease before keeps trying.
///
/// Where etcd has authentication disabled, the session continues without the user, and logs one warning.
///
/// Its `Debug` output leaves the password out.
///
/// ```
/// use eldest::Credentials;
///
/// let fixed = Credentials::new("billing", "secret");
/// let rotated = Credentials::from_file("billing", "/run/secrets/etcd-password");
/// let asked_for = Credentials::from_provider(async || {
///     // Ask what keeps the secrets.
///     Ok(("billing".to_owned(), "secret".to_owned()))
/// });
/// # let _ = (fixed, rotated, asked_for);
/// ```
#[must_use = "credentials do nothing until a session is made with them"]
#[derive(Clone)]
pub struct Credentials(Source);

#[derive(Clone)]
enum Source {
    Given { user: String, password: String },
    File { user: String, file: PathBuf },
    Provider(Arc<Provider>),
}

type Provider = dyn Fn() -> BoxFuture<'static, Result<(String, String), BoxError>> + Send + Sync;

impl Credentials {
    /// Makes credentials of a user and a password.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self(Source::Given {
            user: user.into(),
            password: password.into(),
        })
    }

    /// Makes credentials of a user and the file that holds the password and nothing else; one line break at its end is
    /// ignored. Each authentication reads the file again. While the file cannot be read, attempts to connect fail with
    /// `Unavailable`.
    pub fn from_file(user: impl Into<String>, file: impl Into<PathBuf>) -> Self {
        Self(Source::File {
            user: user.into(),
            file: file.into(),
        })
    }

    /// Asks `provider` for the user and the password before each authentication. The attempt to connect, and with it
    /// this future, is dropped after four request timeouts. While the provider fails, attempts to connect fail with
    /// `Unavailable` and its message.
    ///
    /// A guard that the session spawns is another process, and cannot call the provider: use
    /// [`from_file`](Self::from_file) with it.
    pub fn from_provider<F, R>(provider: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<(String, String), BoxError>> + Send + 'static,
    {
        Self(Source::Provider(Arc::new(move || provider().boxed())))
    }

    /// Returns the user's name, unless a provider supplies it.
    pub fn user(&self) -> Option<&str> {
        match &self.0 {
            Source::Given { user, .. } | Source::File { user, .. } => Some(user),
            Source::Provider(_) => None,
        }
    }

    /// Returns the present user and password.
    ///
    /// # Errors
    ///
    /// Says why there is no password.
    pub(super) async fn now(&self, env: &dyn Env) -> Result<(String, String), String> {
        match &self.0 {
            Source::Given { user, password } => Ok((user.clone(), password.clone())),
            Source::File { user, file } => {
                let named = |why: String| format!("{}: {why}", file.display());
                let read = env.read(file.clone()).await;
                let read = read.map_err(|error| named(error.to_string()))?;
                // The message does not quote the file.
                let text = String::from_utf8(read).map_err(|_| named("it is not UTF-8".into()))?;
                let password = text.strip_suffix('\n').unwrap_or(&text);
                let password = password.strip_suffix('\r').unwrap_or(password);
                if password.is_empty() || password.contains('\n') {
                    return Err(named("it must hold one line, the password".into()));
                }
                Ok((user.clone(), password.to_owned()))
            }
            Source::Provider(provider) => {
                let asked = provider().await;
                asked.map_err(|error| format!("the provider of credentials failed: {error}"))
            }
        }
    }

    /// Returns the credentials for another process.
    pub(super) fn passed(&self) -> Result<Value, String> {
        match &self.0 {
            Source::Given { user, password } => Ok(json!({"user": user, "password": password})),
            Source::File { user, file } => {
                // The other process may work in another folder.
                let file = std::path::absolute(file).map_err(|error| error.to_string())?;
                match file.to_str() {
                    Some(file) => Ok(json!({"user": user, "file": file})),
                    None => Err(format!("the path {} is not UTF-8", file.display())),
                }
            }
            Source::Provider(_) => Err(
                "a guard in a process of its own cannot ask the provider of credentials; use Credentials::from_file"
                    .to_owned(),
            ),
        }
    }

    /// Reads what [`Credentials::passed`] has returned in another process.
    pub(super) fn from_passed(passed: &Value) -> Option<Self> {
        let user = passed["user"].as_str()?;
        let file = passed["file"].as_str();
        let file = file.map(|file| Self::from_file(user, file));
        file.or_else(|| Some(Self::new(user, passed["password"].as_str()?)))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Credentials");
        if let Some(user) = self.user() {
            out.field("user", &user);
        }
        if let Source::File { file, .. } = &self.0 {
            out.field("file", file);
        }
        out.finish_non_exhaustive()
    }
}
