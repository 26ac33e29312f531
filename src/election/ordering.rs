//! Orders the leader of an election to step down, from any session, and waits until its key is gone.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::Election;
use crate::error::{Error, ErrorKind, Result};
use crate::state::{MAX_REASON, Member, Roster};
use eldest_core::kv::LOCK;
use eldest_etcd::runtime::timeout;

/// The longest time for which an order to step down may wait.
pub(super) const LONGEST: Duration = Duration::from_secs(3600);
/// The times for which an order to step down may wait.
const WITHIN: RangeInclusive<Duration> = Duration::from_secs(1)..=LONGEST;
/// How much longer the order's lease lasts, so that it never ends before the wait.
const LONGER: i64 = 5;
/// How many candidates a message names; the others are counted.
const NAMES: usize = 10;

/// An order to the leader of an election to step down.
///
/// [`Election::order_step_down`] says what it does.
#[must_use = "an order does nothing until it is given"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepDown {
    node: Option<String>,
    within: Duration,
    by: Option<String>,
}

impl StepDown {
    /// Makes an order to the leader, whichever node leads. It is withdrawn if the leader has not obeyed within 30 s.
    pub fn new() -> Self {
        Self {
            node: None,
            within: Duration::from_secs(30),
            by: None,
        }
    }

    /// Orders only the node with that identity: the call fails if another node leads.
    pub fn node(mut self, identity: impl Into<String>) -> Self {
        self.node = Some(identity.into());
        self
    }

    /// Sets the time within which the leader must obey: 1 s to 1 h, by default 30 s. The leader's work has its grace
    /// period within that time.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Sets the author of the order for the leader's log, in up to 4096 bytes. By default, this is the session's
    /// identity.
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = Some(by.into());
        self
    }

    fn check(&self) -> Result<()> {
        let invalid = |message| Err(Error::new(ErrorKind::InvalidInput, message));
        let bytes = self.by.as_ref().map_or(0, String::len);
        if bytes > MAX_REASON {
            return invalid(format!(
                "the author has {bytes} bytes; at most {MAX_REASON} are allowed"
            ));
        }
        if !WITHIN.contains(&self.within) {
            let (within, least, most) = (self.within, WITHIN.start(), WITHIN.end());
            return invalid(format!(
                "the order is to be obeyed within {within:?}; the time must be from {least:?} to {most:?}"
            ));
        }
        Ok(())
    }
}

impl Default for StepDown {
    fn default() -> Self {
        Self::new()
    }
}

impl Election {
    /// Orders the leader, on any node, to step down, and waits until its key is gone. Returns the candidate that led,
    /// and the queue without it.
    ///
    /// The leader's term ends as by an [evacuation](crate::Session::evacuate), with the reason
    /// [`Ordered`](crate::LostReason::Ordered): its work has the [grace period](crate::SessionOptions::grace) to
    /// finish, then its key goes and the next eldest leads. The node joins again, at the end of the queue.
    ///
    /// **No leader stops without a successor**: a leader obeys only while another candidate may lead instead. It obeys
    /// at most once in 5 s, and so does a node that began to lead soon after an order. With
    /// [`warm_within`](Election::warm_within), it first leads on until its successor is warm. If the order is not obeyed in
    /// time, it is withdrawn; a leader that is ending its work by then still steps down.
    ///
    /// The order is a key below `<namespace>/~evacuated/` with a lease of its own. Programs of other libraries, older
    /// versions of this one and sessions that may not read there do not obey.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let other = Session::connect([etcd.endpoint()], SessionOptions::new("node-b")).await?;
    /// # let work = async |leadership: eldest::Leadership| {
    /// #     leadership.lost().cancelled().await;
    /// #     Ok::<_, eldest::BoxError>(())
    /// # };
    /// # let led = session.election("billing/scheduler")?;
    /// # let run = led.spawn(eldest::CancellationToken::new(), work);
    /// # led.subscribe().wait_for(|status| matches!(status, eldest::Status::Leading { .. })).await?;
    /// # let _waits = other.election("billing/scheduler")?.campaign().await?;
    /// # let ops = other;
    /// use eldest::StepDown;
    ///
    /// let election = ops.election("billing/scheduler")?;
    /// let (former, queue) = election.order_step_down(StepDown::new().node("node-a")).await?;
    /// assert_eq!(former.identity(), "node-a");
    /// assert_eq!(queue.leader().map(|leader| leader.identity()), Some("node-b"));
    /// # run.stop();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `NotObeyed`: no node leads, the first key has no lease or is a lock's, the named node does not lead, no other
    /// candidate could lead, or the leader did not obey in time. No key is left then. `InvalidInput`: a name or the
    /// time breaks a rule. `PermissionDenied`, `Unauthenticated`: etcd refused the session's user, who needs to read
    /// and write below `~evacuated/`. `Unavailable`: etcd did not answer within the connect timeout; the order ends by
    /// itself. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, the order may remain in etcd, and ends by itself a few seconds after its time.
    pub async fn order_step_down(&self, order: StepDown) -> Result<(Member, Roster)> {
        self.order_step_down_until(order, std::future::pending())
            .await
    }

    /// Does the same, and withdraws the order when `given_up` completes.
    pub(crate) async fn order_step_down_until(
        &self,
        order: StepDown,
        given_up: impl Future<Output = ()>,
    ) -> Result<(Member, Roster)> {
        order.check()?;
        let roster = self.roster().await?;
        let leader = self.addressee(&roster, order.node.as_deref())?.clone();
        self.successor(&roster, &leader).await?;
        let shared = &self.handle.shared;
        let seconds = i64::try_from(order.within.as_secs()).unwrap_or(i64::MAX);
        let by = order.by.as_deref().unwrap_or(&shared.settings.identity);
        let ordered = shared.order_step_down(leader.entry(), by, seconds.saturating_add(LONGER));
        let Some(lease) = ordered.await? else {
            return Ok((leader, self.roster().await?));
        };
        let mut is_given_up = false;
        let obeyed = tokio::select! {
            biased;
            obeyed = timeout(&*shared.env, order.within, self.without(&leader)) => obeyed,
            () = given_up => {
                is_given_up = true;
                None
            }
        };
        let withdrawn = shared.withdraw(lease).await;
        if let Some(obeyed) = obeyed {
            return Ok((leader, obeyed?));
        }
        withdrawn?;
        let after = self.roster().await?;
        if has_candidate(&after, &leader) {
            if is_given_up {
                return Err(not_obeyed(format!(
                    "{leader} had not stepped down yet, and the order was withdrawn"
                )));
            }
            let within = order.within;
            let key = (leader.key(), leader.create_revision());
            let why = if after.has_cold_successor(key) == Some(true) {
                "its successor is not warm, and its work may not have ended yet; an order must outlast the leader's `warm_within`"
            } else {
                "it may be a program of another library, an older version, a session that may not read orders, or its work may \
                 not have ended yet"
            };
            return Err(not_obeyed(format!(
                "{leader} did not step down within {within:?}, and the order was withdrawn: {why}"
            )));
        }
        Ok((leader, after))
    }

    /// Returns the leader, if it is the node to which the order is addressed.
    fn addressee<'a>(&self, roster: &'a Roster, node: Option<&str>) -> Result<&'a Member> {
        let name = self.name();
        let Some(leader) = roster.leader() else {
            return Err(not_obeyed(format!("{name:?}: {roster}")));
        };
        if leader.value().starts_with(LOCK) {
            return Err(not_obeyed(format!(
                "{name:?} is a lock: {leader} holds it until its work is done"
            )));
        }
        let Some(node) = node.filter(|node| *node != leader.identity()) else {
            return Ok(leader);
        };
        let members = roster.members();
        let why = match members.iter().find(|member| member.identity() == node) {
            Some(waits) => format!("{waits} waits in {name:?} at rank {}", waits.rank()),
            None => format!(
                "{node:?} is no candidate of {name:?}: there are {}",
                names(members)
            ),
        };
        Err(not_obeyed(format!("{why}; {leader} leads")))
    }

    /// Checks that another candidate could lead.
    async fn successor(&self, roster: &Roster, leader: &Member) -> Result<()> {
        let Some(others) = self.no_successor(roster, leader, false).await? else {
            return Ok(());
        };
        Err(not_obeyed(format!(
            "{leader} leads {:?}, and nobody else could: {others}",
            self.name()
        )))
    }

    /// Returns why no other candidate could lead, or `None` if one could: nodes of evacuated data centres do not, unless the
    /// leader is one of them and `elsewhere` is false, nor do nodes whose version is older than one that led. A node that
    /// announces none counts as older if the leader requires versions: such a leader would not make way for it.
    pub(crate) async fn no_successor(
        &self,
        roster: &Roster,
        leader: &Member,
        elsewhere: bool,
    ) -> Result<Option<String>> {
        let evacuated = self.session().evacuations().await?;
        let is_away = |member: &Member| {
            let at = member.announcement().data_center();
            at.is_some_and(|at| evacuated.iter().any(|order| order.data_center() == at))
        };
        let counts = roster.members().iter().any(|m| m.version().is_some());
        let newest = if counts {
            self.version_mark().await?.and_then(|mark| mark.version())
        } else {
            None
        };
        let is_new_enough = |other: &Member| {
            let is_free = other.version().is_none() && leader.version().is_none();
            is_free || other.version() >= newest
        };
        let is_free_to_leave = !elsewhere && is_away(leader);
        let others = || roster.members().iter().filter(|other| *other != leader);
        let mut others = others().filter(|other| other.lease_id() != 0);
        if others.any(|other| is_new_enough(other) && (is_free_to_leave || !is_away(other))) {
            return Ok(None);
        }
        let named = names(roster.members().get(1..).unwrap_or_default());
        Ok(Some(match (roster.members().len(), newest) {
            (1, _) => "there is no other candidate".to_owned(),
            (_, Some(newest)) => format!(
                "the others are in evacuated data centres, have no lease, or have older versions than {newest}, which led: {named}"
            ),
            (_, None) => {
                format!("the others are in evacuated data centres or have no lease: {named}")
            }
        }))
    }

    /// Waits until the leader's key is gone. Returns the queue without it.
    async fn without(&self, leader: &Member) -> Result<Roster> {
        let mut observer = self.observe().await?;
        while let Some(roster) = observer.next().await {
            let roster = roster?;
            if !has_candidate(&roster, leader) {
                return Ok(roster);
            }
        }
        Err(Error::closed())
    }
}

fn has_candidate(roster: &Roster, candidate: &Member) -> bool {
    let is_same = |member: &Member| {
        (member.key(), member.create_revision()) == (candidate.key(), candidate.create_revision())
    };
    roster.members().iter().any(is_same)
}

/// Lists the first few candidates, for a message.
fn names(members: &[Member]) -> String {
    let some = members.iter().take(NAMES).map(ToString::to_string);
    let some: Vec<String> = some.collect();
    let some = some.join(", ");
    match members.len().saturating_sub(NAMES) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}

fn not_obeyed(message: String) -> Error {
    Error::new(ErrorKind::NotObeyed, message)
}
