//! Builds the status of etcd's refusals: the store's, and those of a member without a leader.

use eldest_store::Refusal;
use tonic::{Code, Status};

/// Returns the refusal with etcd's own code and message.
pub(crate) fn refused(refusal: Refusal) -> Status {
    let code = match refusal {
        Refusal::EmptyKey
        | Refusal::KeyNotFound
        | Refusal::ValueProvided
        | Refusal::LeaseProvided
        | Refusal::TooManyOps
        | Refusal::DuplicateKey
        | Refusal::InvalidSort
        | Refusal::TooLarge => Code::InvalidArgument,
        Refusal::Compacted | Refusal::FutureRevision | Refusal::LeaseTooLong => Code::OutOfRange,
        Refusal::NoSpace => Code::ResourceExhausted,
        Refusal::LeaseNotFound => Code::NotFound,
        Refusal::LeaseExists => Code::FailedPrecondition,
    };
    Status::new(code, refusal.to_string())
}

pub(crate) fn no_leader() -> Status {
    Status::unavailable("etcdserver: no leader")
}

pub(crate) fn leader_changed() -> Status {
    Status::unavailable("etcdserver: leader changed")
}

pub(crate) fn timed_out() -> Status {
    Status::unavailable("etcdserver: request timed out")
}
