//! Against real etcds.
#![allow(clippy::disallowed_methods)] // Tests run in real time.

use super::*;

fn sendable<T: Send>(_: T) {}

#[allow(dead_code)] // Only compiled.
async fn every_call_may_move_between_threads(pool: std::sync::Arc<Pool>) {
    sendable(pool.join(b"", b"", 0, b""));
    sendable(pool.list(b""));
    sendable(pool.older(b"", 0));
    sendable(pool.read(Lane::Data, b""));
    sendable(pool.delete(b"", 0));
    sendable(pool.proclaim(b"", 0, 0, b""));
    sendable(pool.txn(etcd_client::Txn::new()));
    sendable(pool.probe(b""));
    sendable(pool.client(Lane::Data));
    sendable(pool.grant(1, 1));
    sendable(pool.revoke(1));
    sendable(pool.lease_keys(1));
    if let Ok(mut keepalive) = pool.keepalive(1).await {
        sendable(keepalive.renew());
    }
    if let Ok((mut sender, mut receiver)) = pool.watch((1, Vec::new(), true)).await {
        sendable(sender.send(WatchRequest::Progress));
        sendable(receiver.next());
    }
}
