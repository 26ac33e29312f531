//! Makes candidates hold back once a newer version has led, and shows and removes the mark of that version.

use super::Election;
use crate::error::Result;
use crate::state::VersionMark;
use eldest_core::candidate::Required;
use eldest_core::evacuation::version_key;
use eldest_core::version::Version;
use eldest_etcd::Lane;

impl Election {
    /// Makes candidates that campaign or run through this handle from now on announce that version, and **hold back once
    /// a newer version has led** the election. By default, versions do not count, and the eldest process leads throughout
    /// a rolling restart.
    ///
    /// Use it on all nodes if an older version must not work on what a newer one has written: there is no way back to an
    /// old binary in the middle of a rollout.
    ///
    /// * **Right before a node leads**, it raises the election's mark to its version, in one transaction with a
    ///   comparison of its own key. The node does not lead before etcd has confirmed that. A mark is never lowered.
    /// * **A candidate whose version is older than the mark** does not lead, even if there is no other candidate. It
    ///   waits behind the first candidate whose version is as new as the mark. The log warns once.
    /// * **No term ends because of a version**: the present leader leads on until it steps down, or is
    ///   [ordered](Election::order_step_down) to.
    ///
    /// Candidates of one version follow each other by age. A candidate that announces no version is older than every
    /// version. But it is not held back, nor are programs of other libraries. Each hand-over takes one request to etcd
    /// longer.
    ///
    /// The mark is a key without a lease below `<namespace>/~evacuated/~version/`, which the session's user must be allowed
    /// to read and to write; the user also needs to read `<namespace>/~evacuated/`. A candidate whose claims etcd refuses does
    /// not lead, and moves behind the others. [`Election::version_mark`] shows it, and [`Election::remove_version_mark`] allows older
    /// versions again. The announcement of a candidate then has a field with the version, so a plain string cannot be
    /// announced.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = eldest::Session::connect([etcd.endpoint()], eldest::SessionOptions::new("node-a")).await?;
    /// let election = session.election("billing/scheduler")?.require_version("2.0".parse()?);
    /// let leadership = election.campaign().await?.elected().await?;
    /// let mark = election.version_mark().await?.expect("it leads");
    /// assert_eq!(mark.version(), Some("2.0".parse()?));
    /// # leadership.resign().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn require_version(mut self, version: Version) -> Self {
        self.version = Some(version);
        self
    }

    /// Returns the version that candidates of this handle require.
    pub fn required_version(&self) -> Option<Version> {
        self.version
    }

    /// Reads the mark with the newest version that led the election, by one linearizable read. `None`: no node that
    /// [requires a version](Election::require_version) has led, or the mark was removed.
    ///
    /// # Errors
    ///
    /// As [`Election::leader`].
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn version_mark(&self) -> Result<Option<VersionMark>> {
        let (shared, key) = (&self.handle.shared, self.version_key());
        let (_, entry) = shared
            .persist(|| shared.pool.read(Lane::Data, &key))
            .await?;
        Ok(entry.as_ref().map(VersionMark::decode))
    }

    /// Removes the mark, so that older versions may lead again: age decides alone until the next term begins, which sets
    /// the mark again. Returns the removed mark, or `None` if there was none.
    ///
    /// The present leader leads on. To go back to an older version, remove the mark, and [order](Election::order_step_down)
    /// the leader to step down, or stop it.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`, `Unauthenticated`: etcd refused the session's user, who needs to read and write the key.
    /// `Unavailable`: etcd did not answer within the connect timeout; the mark may exist or not, and the call may be
    /// repeated.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, the mark may exist or not.
    pub async fn remove_version_mark(&self) -> Result<Option<VersionMark>> {
        let shared = &self.handle.shared;
        let removed = shared.remove_mark(&self.version_key()).await?;
        Ok(removed.as_ref().map(VersionMark::decode))
    }

    /// Returns what a candidate of this handle requires.
    pub(super) fn required(&self) -> Option<Required> {
        let version = self.version?;
        let identity = &self.handle.shared.settings.identity;
        Some(Required {
            version,
            mark: VersionMark::encode(version, identity),
        })
    }

    pub(crate) fn version_key(&self) -> Vec<u8> {
        version_key(&self.handle.shared.settings.marks(), self.prefix.as_bytes())
    }
}
