//! Starts several etcd servers as one cluster, restarts and replaces them, and finds the member that leads it.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod membership;

use std::time::Duration;

use etcd_client::{Client, ConnectOptions};

use super::error::{Error, ErrorKind, Result};
use super::etcd::{Etcd, EtcdBuilder, restart_stopped};

/// Several etcd servers on the loopback interface that form one cluster.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Etcd>,
    /// The user who changes the members, and the password.
    user: Option<(String, String)>,
}

impl EtcdBuilder {
    /// Starts a cluster of `size` members, all at once.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start); or `size` is zero.
    pub async fn start_cluster(self, size: usize) -> Result<EtcdCluster> {
        if size == 0 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a cluster needs at least one member",
            ));
        }
        self.start_members(size).await.map(EtcdCluster::new)
    }
}

impl EtcdCluster {
    /// Starts a cluster of `size` members with default settings. For other settings, use
    /// [`EtcdBuilder::start_cluster`](super::EtcdBuilder::start_cluster).
    ///
    /// # Errors
    ///
    /// As for [`Etcd::start`]; or `size` is zero.
    pub async fn start(size: usize) -> Result<Self> {
        Etcd::builder().start_cluster(size).await
    }

    pub(super) fn new(members: Vec<Etcd>) -> Self {
        Self {
            members,
            user: None,
        }
    }

    /// Returns one member, counted from zero.
    ///
    /// # Panics
    ///
    /// There is no such member.
    pub fn member(&mut self, index: usize) -> &mut Etcd {
        &mut self.members[index]
    }

    /// Returns all members.
    pub fn members(&self) -> &[Etcd] {
        &self.members
    }

    /// Returns the endpoints of all members, in order.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Etcd::endpoint).collect()
    }

    /// Waits until a majority agrees on a leader that itself agrees, and returns its index. A leader that was just
    /// killed or paused is not returned.
    ///
    /// # Panics
    ///
    /// There is no such leader within 20 s.
    pub async fn leader(&self) -> usize {
        let deadline = Duration::from_secs(20);
        // `eventually` would hide from the compiler that this future is `Send`.
        let leader = tokio::time::timeout(deadline, async {
            loop {
                if let Some(leader) = self.agreed_leader().await {
                    return leader;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        leader
            .await
            .unwrap_or_else(|_| panic!("no majority agrees on a leader within {deadline:?}"))
    }

    /// Starts all members that were killed, at once, and waits until they serve. Starting them one by one would wait
    /// forever without a quorum.
    ///
    /// # Errors
    ///
    /// As for [`Etcd::restart`].
    pub async fn restart(&mut self) -> Result<()> {
        restart_stopped(&mut self.members).await
    }

    async fn agreed_leader(&self) -> Option<usize> {
        let views = self.members.iter().map(|member| self.view_of(member));
        let views = futures::future::join_all(views).await;
        let (index, leader) = views.iter().enumerate().find_map(|(index, view)| {
            let view = (*view)?;
            (view.leader == view.member).then_some((index, view))
        })?;
        let agree = views.iter().flatten();
        let agree = agree.filter(|view| (view.leader, view.term) == (leader.leader, leader.term));
        (agree.count() > self.members.len() / 2).then_some(index)
    }

    async fn view_of(&self, member: &Etcd) -> Option<View> {
        member.pid()?;
        let asked = async { self.client_of(member).await?.status().await };
        let status = tokio::time::timeout(Duration::from_millis(500), asked).await;
        let status = status.ok()?.ok()?;
        Some(View {
            member: status.header()?.member_id(),
            leader: status.leader(),
            term: status.raft_term(),
        })
    }

    /// Connects a client to that member, as the user if there is one.
    async fn client_of(&self, member: &Etcd) -> Result<Client, etcd_client::Error> {
        let user = self.user.as_ref();
        let options = user.map(|(name, password)| ConnectOptions::new().with_user(name, password));
        Client::connect([member.endpoint()], options).await
    }
}

/// The leader that one member reports.
#[derive(Clone, Copy)]
struct View {
    member: u64,
    leader: u64,
    term: u64,
}
