//! Prepares members with an empty folder for a running cluster.

use std::time::{Duration, Instant};

use super::setup::{Setup, new_folder};
use super::{Etcd, PAGE, Port, START_DEADLINE};
use crate::error::Result;
use crate::http;

/// The pause after a start that failed.
const RETRY: Duration = Duration::from_millis(100);

impl Etcd {
    /// Prepares one more member of this member's cluster, at ports of its own.
    pub(crate) fn sibling(&self, name: String) -> Result<Self> {
        let (client, peer) = (Port::free()?, Port::free()?);
        Ok(Self {
            process: None,
            setup: Setup {
                options: self.setup.options.clone(),
                through: Vec::new(),
                binary: self.setup.binary.clone(),
                version: self.setup.version.clone(),
                data: self.setup.data.clone(),
                name,
                client,
                tls: self.setup.tls.as_ref().map(|_| Port::free()).transpose()?,
                peer,
                members: String::new(),
                joins: true,
                token: self.setup.token.clone(),
            },
            member: None,
            folder: new_folder()?,
        })
    }

    /// Ends the process, and gives the member a new name and an empty folder. It keeps its ports.
    pub(crate) fn forget(&mut self, name: String) -> Result<()> {
        let folder = new_folder()?;
        self.kill();
        self.member = None;
        self.setup.name = name;
        self.setup.joins = true;
        self.folder = folder;
        Ok(())
    }

    /// Starts a prepared member with an empty folder among these.
    pub(crate) async fn join(&mut self, members: String) -> Result<()> {
        self.setup.members = members;
        self.setup.data = match &self.setup.options.data_dir {
            None => self.folder.path().join("data"),
            Some(data) => data.join(&self.setup.name),
        };
        let deadline = Instant::now() + START_DEADLINE;
        // The process ends if the member that it asks does not know it yet.
        while let Err(error) = self.restart().await {
            if Instant::now() >= deadline {
                return Err(error);
            }
            tokio::time::sleep(RETRY).await;
        }
        Ok(())
    }

    /// Returns `name=peer url`.
    pub(crate) fn entry(&self) -> String {
        self.setup.entry()
    }

    /// Returns the URL at which the other members reach this one.
    pub(crate) fn peer_url(&self) -> String {
        self.setup.peer.url()
    }

    /// Returns true if this member's own list of members has one at that peer URL that has not started yet. The list is
    /// the one that a new member reads, and may be behind the leader's.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](crate::ErrorKind::Unreachable): the member does not answer within 5 s.
    pub(crate) async fn expects(&self, peer_url: &str) -> Result<bool> {
        let page = http::get(&self.setup.peer.address(), "/members", PAGE).await?;
        let members: serde_json::Value = serde_json::from_str(&page).unwrap_or_default();
        let mut members = members.as_array().into_iter().flatten();
        Ok(members.any(|member| {
            let mut urls = member["peerURLs"].as_array().into_iter().flatten();
            // A member publishes its name when it starts.
            urls.any(|url| url == peer_url) && member["name"].as_str().is_none_or(str::is_empty)
        }))
    }

    /// Returns the member's id in the cluster.
    pub(crate) fn id(&self) -> Option<u64> {
        self.member
    }
}
