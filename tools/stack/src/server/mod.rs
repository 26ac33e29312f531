//! Hides an etcd in this process: what it answers, how its members agree, and how they are broken on purpose.
//!
//! It speaks etcd's v3 interface as far as the library uses it, over any connection: turmoil's in simulated time, a real
//! socket in real time. The test `conformance` asks it and a real etcd the same at random, and every answer and every
//! event must be the same.
//!
//! # As etcd 3.7
//!
//! Where versions differ it does as 3.7 does, and the requests in question are not asked of older ones:
//!
//! * 3.7 leaves out the leases of keys that are read without their values, unless they are sorted by value.
//! * A put that both names a lease that is not there and keeps the value of a key that is not there either: 3.7 says
//!   "lease not found", older ones "key not found".
//! * From 3.6 on an order or a target of sorting that there is not is refused.
//! * 3.5 looks at all puts of a transaction before it looks at the revisions of its reads, later ones go in order.
//!
//! # Unlike etcd
//!
//! * The members agree by a model ([`Cluster`]), not by raft: what one knows of another costs a time that is drawn and no
//!   messages of the network. So a partition of hosts does not part members; [`Cluster::cut`] does.
//! * What a follower has not applied yet it sees as an older revision of the one store. Leases are listed as they are.
//! * A member that was replaced as leader acknowledges renewals for longer than a real one ([`ClusterOptions::stale`]).
//! * No users, no TLS, no quota (but [`Cluster::no_space`]), no learners, no checkpoints of leases. Members are listed and
//!   do not change. `RangeStream`, the maintenance calls other than `Status`, and the services `Auth`, `Election` and
//!   `Lock` are not there.
//! * Of watches: `fragment` and `progress_notify` are taken and do nothing.
//! * A request is too large at 1.5 MiB of its own; etcd counts what it wraps around it as well.
//! * A transaction that only reads is linearizable even if all its reads are serializable.
//!
//! # Not asked
//!
//! Within a transaction etcd does not see that a range without an end overlaps a put. When a key that was deleted and made
//! anew in one revision by such a one is then compacted and read, etcd 3.7.2 ends itself ("range failed to find revision
//! pair"). The test does not ask for it.

mod check;
mod cluster;
mod errors;
mod range;
mod services;
mod store;
mod watch;

use std::io;

use etcd_client::proto::{
    PbClusterServer, PbKvServer, PbLeaseServer, PbMaintenanceServer, PbWatchServer,
};
use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::Server;
use tonic::transport::server::Connected;

pub use cluster::{Change, Cluster, ClusterOptions, Tally};
use services::Member;

/// A page of large values overruns gRPC's default of 4 MiB; etcd sends without a limit and receives so much.
const MAX_MESSAGE: usize = 2 << 20;

/// Serves the clients of one member, for as long as connections come.
///
/// # Errors
///
/// Taking connections failed.
///
/// # Cancellation safety
///
/// Dropping the future ends the member's service, but not the streams that are open: those end with the runtime.
pub async fn serve<C>(
    cluster: Cluster,
    member: usize,
    connections: impl Stream<Item = io::Result<C>>,
) -> Result<(), tonic::transport::Error>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    cluster.boot(member);
    let me = Member {
        cluster: cluster.clone(),
        me: member,
    };
    let service = Server::builder()
        .add_service(PbKvServer::new(me.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(PbLeaseServer::new(me.clone()))
        .add_service(PbWatchServer::new(me.clone()))
        .add_service(PbClusterServer::new(me.clone()))
        .add_service(PbMaintenanceServer::new(me))
        .serve_with_incoming(connections);
    tokio::select! {
        biased;
        () = cluster.beat() => Ok(()),
        served = service => served,
    }
}
