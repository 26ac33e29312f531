//! Changes the members of a running cluster: adds a learner, promotes it, removes a member, and replaces one.

use std::time::{Duration, Instant};

use etcd_client::MemberAddOptions;

use super::EtcdCluster;
use crate::error::{Error, ErrorKind, Result};
use crate::etcd::Etcd;

/// How long a change may be refused. etcd refuses changes until its members were connected for 5 s.
const CHANGE: Duration = Duration::from_secs(30);
/// The time limit of one request.
const REQUEST: Duration = Duration::from_secs(5);
/// The pause after a refusal.
const RETRY: Duration = Duration::from_millis(100);

/// A change that one request makes.
#[derive(Debug, Clone)]
enum Change {
    Add(String),
    AddLearner(String),
    Promote(u64),
    Remove(u64),
}

impl EtcdCluster {
    /// Sets the user as whom this value asks the members who leads, and changes the members. Call it when authentication is
    /// enabled; the user needs the role `root`.
    pub fn set_user(&mut self, name: impl Into<String>, password: impl Into<String>) {
        self.user = Some((name.into(), password.into()));
    }

    /// Adds a member with an empty folder as a learner, waits until it serves, and returns its index. A learner receives
    /// all data, has no vote, and refuses most requests.
    ///
    /// # Errors
    ///
    /// As for [`Etcd::start`]; or [`Refused`](ErrorKind::Refused): etcd refuses the change for 30 s; or
    /// [`TimedOut`](ErrorKind::TimedOut): a running member does not know of the change after 30 s.
    pub async fn add_learner(&mut self) -> Result<usize> {
        let index = self.members.len();
        let learner = self.members[0].sibling(self.new_name())?;
        self.members.push(learner);
        let joined = self.join_as_learner(index).await;
        if joined.is_err() {
            self.members.truncate(index);
        }
        joined.map(|()| index)
    }

    /// Gives a learner its vote, once it has received all data, and waits until the member itself knows that.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput): the member never served. [`Refused`](ErrorKind::Refused): etcd
    /// refuses the change for 30 s. [`TimedOut`](ErrorKind::TimedOut): the member does not know of its vote after 30 s.
    pub async fn promote(&mut self, index: usize) -> Result<()> {
        let id = self.id(index)?;
        self.change(&Change::Promote(id), index).await?;
        let deadline = Instant::now() + CHANGE;
        while self.is_learner(&self.members[index]).await != Some(false) {
            if Instant::now() >= deadline {
                let text = format!("member {index} has not heard of its vote after {CHANGE:?}");
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            tokio::time::sleep(RETRY).await;
        }
        Ok(())
    }

    /// Removes a member from the cluster, and ends its process. The indexes of later members become smaller by one.
    ///
    /// # Errors
    ///
    /// As for [`promote`](Self::promote).
    pub async fn remove(&mut self, index: usize) -> Result<()> {
        let id = self.id(index)?;
        self.change(&Change::Remove(id), index).await?;
        self.members.remove(index);
        Ok(())
    }

    /// Removes a member and adds a new one with an empty folder in its place, at other ports. It serves on return.
    ///
    /// # Errors
    ///
    /// As for [`promote`](Self::promote), or as for [`Etcd::start`]; [`InvalidInput`](ErrorKind::InvalidInput): there is no other
    /// member. The member may then be removed, and no new one added.
    pub async fn replace(&mut self, index: usize) -> Result<()> {
        let id = self.id(index)?;
        let new = self.members[index].sibling(self.new_name())?;
        self.change(&Change::Remove(id), index).await?;
        let url = new.peer_url();
        // This ends the process of the old member.
        self.members[index] = new;
        self.join(Change::Add(url), index).await
    }

    /// Removes a member and adds a new one with an empty folder at the same addresses, as a learner. Follow it with
    /// [`promote`](Self::promote).
    ///
    /// # Errors
    ///
    /// As for [`add_learner`](Self::add_learner). The member may then be removed, and no new one added.
    pub async fn replace_by_learner(&mut self, index: usize) -> Result<()> {
        let id = self.id(index)?;
        self.change(&Change::Remove(id), index).await?;
        let name = self.new_name();
        self.members[index].forget(name)?;
        self.join_as_learner(index).await
    }

    async fn join_as_learner(&mut self, index: usize) -> Result<()> {
        let url = self.members[index].peer_url();
        self.join(Change::AddLearner(url), index).await
    }

    async fn join(&mut self, change: Change, index: usize) -> Result<()> {
        self.change(&change, index).await?;
        self.wait_until_expected(index).await?;
        let entries: Vec<String> = self.members.iter().map(Etcd::entry).collect();
        self.members[index].join(entries.join(",")).await
    }

    /// Waits until every running member's own list has the new one. etcd gives a new member the id that the first list names
    /// for its peer URL; a list that is behind names the member that had this URL before, and the cluster refuses that id
    /// for ever. A member that does not answer cannot mislead the new one either.
    async fn wait_until_expected(&self, index: usize) -> Result<()> {
        let url = self.members[index].peer_url();
        let deadline = Instant::now() + CHANGE;
        for member in self.running_beside(index) {
            while let Ok(false) = member.expects(&url).await {
                if Instant::now() >= deadline {
                    let name = member.name();
                    let text = format!("member {name} does not list {url} after {CHANGE:?}");
                    return Err(Error::new(ErrorKind::TimedOut, text));
                }
                tokio::time::sleep(RETRY).await;
            }
        }
        Ok(())
    }

    /// Returns the other members whose processes run.
    fn running_beside(&self, index: usize) -> Vec<&Etcd> {
        let members = self.members.iter().enumerate();
        let others = members.filter(|(other, member)| *other != index && member.pid().is_some());
        others.map(|(_, member)| member).collect()
    }

    /// Returns true if the member reports itself as a learner, or `None` if it does not answer.
    async fn is_learner(&self, member: &Etcd) -> Option<bool> {
        let asked = async { self.client_of(member).await?.status().await };
        let status = tokio::time::timeout(REQUEST, asked).await.ok()?.ok()?;
        Some(status.is_learner())
    }

    /// Returns a name that no member of the cluster had before.
    fn new_name(&self) -> String {
        let first = self.members[0].name();
        format!("{first}-{:08x}", fastrand::u32(..))
    }

    fn id(&self, index: usize) -> Result<u64> {
        self.members[index].id().ok_or_else(|| {
            let text = format!("member {index} never served, so its id is unknown");
            Error::new(ErrorKind::InvalidInput, text)
        })
    }

    /// Sends the change to the other members in turn until one of them has made it.
    async fn change(&self, change: &Change, index: usize) -> Result<()> {
        let others = self.running_beside(index);
        let deadline = Instant::now() + CHANGE;
        let mut last = Error::new(
            ErrorKind::InvalidInput,
            "no other member runs that could make the change",
        );
        for member in others.iter().cycle() {
            let asked = tokio::time::timeout(REQUEST, self.ask(member, change));
            match asked.await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => last = Error::of_etcd("change the members", error),
                Err(_) => {
                    let text = format!("no answer in {REQUEST:?} to {change:?}");
                    last = Error::new(ErrorKind::Unreachable, text);
                }
            }
            if Instant::now() >= deadline {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
        Err(last)
    }

    /// Makes the change, unless an earlier request of ours made it.
    async fn ask(&self, member: &Etcd, change: &Change) -> Result<(), etcd_client::Error> {
        let mut client = self.client_of(member).await?;
        let known = client.member_list().await?;
        let by_id = |id: u64| known.members().iter().find(|member| member.id() == id);
        match change {
            Change::Add(url) | Change::AddLearner(url) => {
                let has_url = |member: &etcd_client::Member| member.peer_urls().contains(url);
                if !known.members().iter().any(has_url) {
                    let learner = matches!(change, Change::AddLearner(_))
                        .then(|| MemberAddOptions::new().with_is_learner());
                    client.member_add([url.as_str()], learner).await?;
                }
            }
            Change::Promote(id) => {
                if by_id(*id).is_some_and(etcd_client::Member::is_learner) {
                    client.member_promote(*id).await?;
                }
            }
            Change::Remove(id) => {
                if by_id(*id).is_some() {
                    client.member_remove(*id).await?;
                }
            }
        }
        Ok(())
    }
}
