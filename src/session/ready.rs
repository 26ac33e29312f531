//! Brings up the session's lease before anybody stands.

use super::Session;
use crate::driver::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::timeout;
use crate::state::{LeaseView, SessionState};

impl Session {
    /// Obtains the session's lease without standing in any election, and waits until it is believed in. Afterwards a
    /// campaign needs one request less, and etcd is known to grant leases to this user.
    ///
    /// From the first call on, the session holds a lease as if a candidate stood, and replaces one that is lost. Calling it
    /// again waits until there is one.
    ///
    /// # Errors
    ///
    /// `Unavailable`: there was none within the [connect timeout](crate::SessionOptions::connect_timeout); it is asked for
    /// again and again in the background, and the log says why it failed. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the lease is obtained in the background.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// let lease = session.ready().await?;
    /// println!("lease {:x} is good for {:?}", lease.lease_id(), lease.time_left());
    /// # assert_eq!(etcd.client().await.leases().await?.leases()[0].id(), lease.lease_id());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ready(&self) -> Result<LeaseView> {
        self.handle().call(Command::KeepLease).await?;
        let mut state = self.state();
        let live =
            state.wait_for(|state| matches!(state, SessionState::Live(_) | SessionState::Closed));
        let shared = self.shared();
        let patience = shared.settings.connect_timeout;
        match timeout(&*shared.env, patience, live).await {
            Some(Ok(state)) => match &*state {
                SessionState::Live(lease) => Ok(lease.clone()),
                _ => Err(Error::closed()),
            },
            // The driver is gone.
            Some(Err(_)) => Err(Error::closed()),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                format!("etcd granted no lease within {patience:?}"),
            )),
        }
    }
}
