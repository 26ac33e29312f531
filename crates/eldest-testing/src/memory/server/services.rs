//! Implements the gRPC services of one member: each call uses the store and the cluster.

use std::pin::Pin;

use eldest_store::{Refusal, Store};
use etcd_client::proto::{
    PbAlarmRequest, PbAlarmResponse, PbClusterService, PbDefragmentRequest, PbDefragmentResponse,
    PbDowngradeRequest, PbDowngradeResponse, PbHashKvRequest, PbHashKvResponse, PbHashRequest,
    PbHashResponse, PbKvService, PbLeaseGrantRequest, PbLeaseGrantResponse,
    PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse, PbLeaseLeasesRequest, PbLeaseLeasesResponse,
    PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseService, PbLeaseStatus,
    PbLeaseTimeToLiveRequest, PbLeaseTimeToLiveResponse, PbMaintenanceService, PbMember,
    PbMemberAddRequest, PbMemberAddResponse, PbMemberListRequest, PbMemberListResponse,
    PbMemberPromoteRequest, PbMemberPromoteResponse, PbMemberRemoveRequest, PbMemberRemoveResponse,
    PbMemberUpdateRequest, PbMemberUpdateResponse, PbMoveLeaderRequest, PbMoveLeaderResponse,
    PbRangeStreamResponse, PbSnapshotRequest, PbSnapshotResponse, PbStatusRequest,
    PbStatusResponse, PbWatchRequest, PbWatchResponse, PbWatchService,
};
use futures::Stream;
use futures::stream::Empty;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::cluster::Cluster;
use super::member::{Member, leader_lost, requires_leader};
use super::{errors, watch, wire};
use crate::memory::proto::{
    CompactionRequest, CompactionResponse, DeleteRequest, DeleteResponse, Header, PutRequest,
    PutResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};

/// The default of `--max-request-bytes`.
const MAX_REQUEST: usize = 3 << 19;
/// The number of answers that a stream holds until the client takes them.
const QUEUE: usize = 256;
/// The version that the server reports.
const VERSION: &str = "3.7.0";

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn fits(request: &impl Message) -> Result<(), Status> {
    if request.encoded_len() > MAX_REQUEST {
        return Err(errors::refused(Refusal::TooLarge));
    }
    Ok(())
}

fn unsupported<T>(what: &str) -> Answer<T> {
    Err(Status::unimplemented(format!("{what} is not modelled")))
}

#[tonic::async_trait]
impl PbKvService for Member {
    type RangeStreamStream = Empty<Result<PbRangeStreamResponse, Status>>;

    async fn range(&self, request: Request<RangeRequest>) -> Answer<RangeResponse> {
        self.accept(&request).await?;
        let request = request.into_inner();
        let serializable = request.serializable;
        let range = wire::range(request);
        range.check().map_err(errors::refused)?;
        if !serializable {
            self.cluster.read_index(self.me).await?;
        }
        let read = |store: &Store, view| store.range(&range, view);
        let done = self.cluster.view(self.me, read).map_err(errors::refused)?;
        let mut answer = wire::ranged(&done);
        answer.header = Some(self.signed(answer.header));
        Ok(Response::new(answer))
    }

    async fn range_stream(&self, _: Request<RangeRequest>) -> Answer<Self::RangeStreamStream> {
        unsupported("RangeStream")
    }

    async fn put(&self, request: Request<PutRequest>) -> Answer<PutResponse> {
        self.accept(&request).await?;
        let request = request.into_inner();
        let size = fits(&request);
        let put = wire::put(request);
        put.check().map_err(errors::refused)?;
        size?;
        let put = self.cluster.propose(self.me, true, |store| store.put(&put));
        let mut answer = wire::put_done(&put.await?);
        answer.header = Some(self.signed(answer.header));
        Ok(Response::new(answer))
    }

    async fn delete_range(&self, request: Request<DeleteRequest>) -> Answer<DeleteResponse> {
        self.accept(&request).await?;
        let request = request.into_inner();
        let size = fits(&request);
        let delete = wire::delete(request);
        delete.check().map_err(errors::refused)?;
        size?;
        let delete = |store: &mut Store| Ok(store.delete(&delete));
        let done = self.cluster.propose(self.me, false, delete).await?;
        let mut answer = wire::delete_done(&done);
        answer.header = Some(self.signed(answer.header));
        Ok(Response::new(answer))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Answer<TxnResponse> {
        self.accept(&request).await?;
        let request = request.into_inner();
        let size = fits(&request);
        let txn = wire::txn(request)?;
        let most = self.cluster.most_operations();
        txn.check(most).map_err(errors::refused)?;
        let done = if txn.reads_only() {
            // A serializable request would not wait, but the library sends none.
            self.cluster.read_index(self.me).await?;
            let read = |store: &Store, view| store.read_txn(&txn, view);
            self.cluster.view(self.me, read).map_err(errors::refused)?
        } else {
            size?;
            let apply = |store: &mut Store| store.txn(&txn);
            let puts = txn.puts();
            self.cluster.propose(self.me, puts, apply).await?
        };
        let mut answer = wire::txn_done(&done);
        answer.header = Some(self.signed(answer.header));
        Ok(Response::new(answer))
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Answer<CompactionResponse> {
        self.accept(&request).await?;
        let revision = request.into_inner().revision;
        let compact = |store: &mut Store| store.compact(revision);
        self.cluster.propose(self.me, false, compact).await?;
        let header = Some(self.header());
        Ok(Response::new(CompactionResponse { header }))
    }
}

#[tonic::async_trait]
impl PbLeaseService for Member {
    type LeaseKeepAliveStream = Answers<PbLeaseKeepAliveResponse>;

    async fn lease_grant(
        &self,
        request: Request<PbLeaseGrantRequest>,
    ) -> Answer<PbLeaseGrantResponse> {
        self.accept(&request).await?;
        let PbLeaseGrantRequest { ttl, id } = request.into_inner();
        let (id, ttl) = self.cluster.grant(self.me, id, ttl).await?;
        let (header, error) = (Some(self.header()), String::new());
        Ok(Response::new(PbLeaseGrantResponse {
            header,
            id,
            ttl,
            error,
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<PbLeaseRevokeRequest>,
    ) -> Answer<PbLeaseRevokeResponse> {
        self.accept(&request).await?;
        self.cluster.end(self.me, request.into_inner().id).await?;
        let header = Some(self.header());
        Ok(Response::new(PbLeaseRevokeResponse { header }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Answer<Self::LeaseKeepAliveStream> {
        self.accept(&request).await?;
        let leader = requires_leader(&request);
        let (answers, stream) = mpsc::channel(QUEUE);
        let requests = request.into_inner();
        tokio::spawn(keep_alive(self.clone(), leader, requests, answers));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<PbLeaseTimeToLiveRequest>,
    ) -> Answer<PbLeaseTimeToLiveResponse> {
        self.accept(&request).await?;
        let PbLeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let lease = self.cluster.time_to_live(self.me, id).await?;
        let mut answer = PbLeaseTimeToLiveResponse {
            header: Some(self.header()),
            id,
            ttl: -1,
            ..PbLeaseTimeToLiveResponse::default()
        };
        if let Some(lease) = lease {
            answer.ttl = lease.left.as_secs() as i64;
            answer.granted_ttl = lease.granted.as_secs() as i64;
            if keys {
                answer.keys = lease.keys.iter().map(|key| key.to_vec()).collect();
            }
        }
        Ok(Response::new(answer))
    }

    async fn lease_leases(
        &self,
        request: Request<PbLeaseLeasesRequest>,
    ) -> Answer<PbLeaseLeasesResponse> {
        self.accept(&request).await?;
        let ids = self.cluster.lease_ids();
        let leases = ids.into_iter().map(|id| PbLeaseStatus { id }).collect();
        let header = Some(self.header());
        Ok(Response::new(PbLeaseLeasesResponse { header, leases }))
    }
}

/// Answers one stream of renewals in their order.
async fn keep_alive(
    member: Member,
    leader: bool,
    mut requests: Streaming<PbLeaseKeepAliveRequest>,
    answers: mpsc::Sender<Result<PbLeaseKeepAliveResponse, Status>>,
) {
    loop {
        let request = tokio::select! {
            biased;
            () = leader_lost(&member, leader) => {
                // A client that has gone needs no answer.
                let _ = answers.send(Err(errors::no_leader())).await;
                return;
            }
            request = requests.message() => request,
        };
        let Ok(Some(request)) = request else { return };
        member.cluster.thawed(member.me).await;
        // The header is made before the renewal, as etcd does.
        let header = Some(member.header());
        let answer = member.cluster.renew(member.me, request.id).await;
        let answer = answer.map(|ttl| PbLeaseKeepAliveResponse {
            header,
            id: request.id,
            ttl: ttl.unwrap_or_default().as_secs() as i64,
        });
        let failed = answer.is_err();
        if answers.send(answer).await.is_err() || failed {
            return;
        }
    }
}

#[tonic::async_trait]
impl PbWatchService for Member {
    type WatchStream = Answers<PbWatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<PbWatchRequest>>,
    ) -> Answer<Self::WatchStream> {
        self.accept(&request).await?;
        let leader = requires_leader(&request);
        let (answers, stream) = mpsc::channel(QUEUE);
        let requests = request.into_inner();
        tokio::spawn(watch::serve(self.clone(), leader, requests, answers));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

#[tonic::async_trait]
impl PbClusterService for Member {
    async fn member_list(
        &self,
        request: Request<PbMemberListRequest>,
    ) -> Answer<PbMemberListResponse> {
        self.accept(&request).await?;
        if request.into_inner().linearizable {
            self.cluster.read_index(self.me).await?;
        }
        let member = |me| PbMember {
            id: Cluster::member_id(me),
            name: format!("etcd-{me}"),
            peer_ur_ls: vec![format!("http://etcd-{me}:2380")],
            client_ur_ls: vec![format!("http://etcd-{me}:2379")],
            is_learner: false,
        };
        let members = (0..self.cluster.members()).map(member).collect();
        let header = Some(Header {
            revision: 0,
            ..self.header()
        });
        Ok(Response::new(PbMemberListResponse { header, members }))
    }

    async fn member_add(&self, _: Request<PbMemberAddRequest>) -> Answer<PbMemberAddResponse> {
        unsupported("MemberAdd")
    }

    async fn member_remove(
        &self,
        _: Request<PbMemberRemoveRequest>,
    ) -> Answer<PbMemberRemoveResponse> {
        unsupported("MemberRemove")
    }

    async fn member_update(
        &self,
        _: Request<PbMemberUpdateRequest>,
    ) -> Answer<PbMemberUpdateResponse> {
        unsupported("MemberUpdate")
    }

    async fn member_promote(
        &self,
        _: Request<PbMemberPromoteRequest>,
    ) -> Answer<PbMemberPromoteResponse> {
        unsupported("MemberPromote")
    }
}

#[tonic::async_trait]
impl PbMaintenanceService for Member {
    type SnapshotStream = Empty<Result<PbSnapshotResponse, Status>>;

    async fn status(&self, request: Request<PbStatusRequest>) -> Answer<PbStatusResponse> {
        // The member answers by itself, whether it leads or not.
        self.cluster.thawed(self.me).await;
        drop(request);
        let header = self.header();
        let leader = self.cluster.leader().map_or(0, Cluster::member_id);
        let known = !self.cluster.knows_no_leader(self.me);
        Ok(Response::new(PbStatusResponse {
            header: Some(header),
            version: VERSION.to_owned(),
            leader: if known { leader } else { 0 },
            raft_term: header.raft_term,
            ..PbStatusResponse::default()
        }))
    }

    async fn alarm(&self, _: Request<PbAlarmRequest>) -> Answer<PbAlarmResponse> {
        unsupported("Alarm")
    }

    async fn defragment(&self, _: Request<PbDefragmentRequest>) -> Answer<PbDefragmentResponse> {
        unsupported("Defragment")
    }

    async fn hash(&self, _: Request<PbHashRequest>) -> Answer<PbHashResponse> {
        unsupported("Hash")
    }

    async fn hash_kv(&self, _: Request<PbHashKvRequest>) -> Answer<PbHashKvResponse> {
        unsupported("HashKV")
    }

    async fn snapshot(&self, _: Request<PbSnapshotRequest>) -> Answer<Self::SnapshotStream> {
        unsupported("Snapshot")
    }

    async fn move_leader(&self, _: Request<PbMoveLeaderRequest>) -> Answer<PbMoveLeaderResponse> {
        unsupported("MoveLeader")
    }

    async fn downgrade(&self, _: Request<PbDowngradeRequest>) -> Answer<PbDowngradeResponse> {
        unsupported("Downgrade")
    }
}
