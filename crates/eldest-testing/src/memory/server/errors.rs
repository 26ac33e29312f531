//! Builds etcd's refusals, each with etcd's own code and message.

use tonic::{Code, Status};

macro_rules! refusals {
    ($($name:ident: $code:ident $message:literal;)*) => {
        $(
            pub(crate) fn $name() -> Status {
                Status::new(Code::$code, concat!("etcdserver: ", $message))
            }
        )*
    };
}

refusals! {
    empty_key: InvalidArgument "key is not provided";
    key_not_found: InvalidArgument "key not found";
    value_provided: InvalidArgument "value is provided";
    lease_provided: InvalidArgument "lease is provided";
    too_many_ops: InvalidArgument "too many operations in txn request";
    duplicate_key: InvalidArgument "duplicate key given in txn request";
    invalid_sort: InvalidArgument "invalid sort option";
    too_large: InvalidArgument "request is too large";
    compacted: OutOfRange "mvcc: required revision has been compacted";
    future_revision: OutOfRange "mvcc: required revision is a future revision";
    no_space: ResourceExhausted "mvcc: database space exceeded";
    lease_not_found: NotFound "requested lease not found";
    lease_exists: FailedPrecondition "lease already exists";
    lease_too_long: OutOfRange "too large lease TTL";
    no_leader: Unavailable "no leader";
    leader_changed: Unavailable "leader changed";
    timed_out: Unavailable "request timed out";
}
