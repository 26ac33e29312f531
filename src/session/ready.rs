//! Grants the session's lease before any campaign.

use super::Session;
use crate::driver::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::state::{LeaseView, SessionState};
use eldest_etcd::runtime::timeout;

impl Session {
    /// Waits until the session has a lease that it trusts, without joining any election.
    ///
    /// Afterwards a campaign needs one request less, and etcd is known to grant leases to this user. From the first
    /// call on, the session holds a lease as if it had a candidate, and replaces the lease if it is lost. A later call
    /// waits until there is a lease.
    ///
    /// # Errors
    ///
    /// `Unavailable`: the session got no lease within the [connect timeout](crate::SessionOptions::connect_timeout).
    /// The session continues to request a lease in the background, and the log says why the requests failed. `Closed`:
    /// the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the lease is granted in the background.
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
