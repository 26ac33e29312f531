//! Imports etcd's messages from etcd-client under the names that the server uses.

pub(crate) use etcd_client::EventType;
pub(crate) use etcd_client::proto::{
    PbCompactionRequest as CompactionRequest, PbCompactionResponse as CompactionResponse,
    PbCompare as Compare, PbCompareTarget as CompareTarget, PbDeleteRequest as DeleteRequest,
    PbDeleteResponse as DeleteResponse, PbEvent as Event, PbKeyValue as KeyValue,
    PbPutRequest as PutRequest, PbPutResponse as PutResponse, PbRangeRequest as RangeRequest,
    PbRangeResponse as RangeResponse, PbResponseHeader as Header, PbResponseOp as ResponseOp,
    PbTargetUnion as TargetUnion, PbTxnOpRequest as Request, PbTxnOpResponse as Response,
    PbTxnRequest as TxnRequest, PbTxnRequestOp as RequestOp, PbTxnResponse as TxnResponse,
};
