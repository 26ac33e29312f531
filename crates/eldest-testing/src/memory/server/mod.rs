//! Implements an etcd in this process: the store of `eldest-store`, the agreement of its members, and faults on request.
//!
//! It speaks etcd's v3 interface as far as the library uses it, over any connection: turmoil's in simulated time, a
//! real socket in real time. The test `conformance` sends the same random requests to it and to a real etcd. Every
//! answer and every event must be the same.
//!
//! # As etcd 3.7
//!
//! Where versions differ, it behaves as 3.7 does, and the test does not send the requests in question to older
//! versions:
//!
//! * 3.7 leaves out the leases of keys that are read without their values, unless they are sorted by value.
//! * If a put names a missing lease and keeps the value of a missing key, 3.7 answers "lease not found". Older versions
//!   answer "key not found".
//! * From 3.6 on, an unknown order or target of sorting is refused.
//! * 3.5 checks all puts of a transaction before the revisions of its reads. Later versions check them in order.
//!
//! # Unlike etcd
//!
//! * The members agree by a model ([`Cluster`]), not by raft: their exchanges take a randomly drawn time and no
//!   messages of the network. So a partition of hosts does not separate members; [`Cluster::cut`] does.
//! * A member that is behind sees the one store at an older revision. Its list of leases is always the present one.
//! * A member that was replaced as leader acknowledges renewals for longer than a real one ([`ClusterOptions::stale`]).
//! * No users, no TLS, no quota (but [`Cluster::no_space`]), no learners, no checkpoints of leases. Members are listed
//!   and do not change. `RangeStream`, the maintenance calls other than `Status`, and the services `Auth`, `Election`
//!   and `Lock` are not there.
//! * Watches accept `fragment` and `progress_notify`, and ignore them.
//! * The limit of 1.5 MiB applies to the request itself. etcd also counts the message around it.
//! * A comparison by an unknown target or relation is refused.
//! * A transaction that only reads is linearizable even if all its reads are serializable.
//!
//! # Not asked
//!
//! Within a transaction etcd does not see that a range without an end overlaps a put. So one transaction can delete a
//! key by such a range and create it again in the same revision. When that key is then compacted and read, etcd 3.7.2
//! ends itself ("range failed to find revision pair"). The test never sends such a request.

mod changes;
mod cluster;
mod errors;
mod member;
mod services;
mod watch;
mod wire;

use std::io;

use etcd_client::proto::{
    PbClusterServer, PbKvServer, PbLeaseServer, PbMaintenanceServer, PbWatchServer,
};
use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::Server;
use tonic::transport::server::Connected;

pub use cluster::{Change, Cluster, ClusterOptions, Tally};
use member::Member;

/// A page of large values exceeds gRPC's default of 4 MiB. etcd sends without a limit and receives messages up to this
/// size.
const MAX_MESSAGE: usize = 2 << 20;

/// Serves the clients of one member, for as long as connections come.
///
/// # Errors
///
/// Accepting connections failed.
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
