//! Names etcd's refusals of a request, each with etcd's own message.

use std::fmt;

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident: $message:literal;)*) => {
        /// The reason for which etcd refuses a request. Its text is etcd's message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Refusal {
            $($(#[$doc])* $name,)*
        }

        impl fmt::Display for Refusal {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Refusal::$name => concat!("etcdserver: ", $message),)*
                })
            }
        }
    };
}

refusals! {
    /// The request names the empty key.
    EmptyKey: "key is not provided";
    /// A put keeps the value or the lease of a key that does not exist, or an operation is missing.
    KeyNotFound: "key not found";
    /// A put has a value and keeps the former one.
    ValueProvided: "value is provided";
    /// A put has a lease and keeps the former one.
    LeaseProvided: "lease is provided";
    /// A transaction has more operations or comparisons than `--max-txn-ops`.
    TooManyOps: "too many operations in txn request";
    /// A transaction may write a key twice.
    DuplicateKey: "duplicate key given in txn request";
    /// The order or the target of the sorting is unknown.
    InvalidSort: "invalid sort option";
    /// The request has more bytes than `--max-request-bytes`.
    TooLarge: "request is too large";
    /// The history before a later revision is removed.
    Compacted: "mvcc: required revision has been compacted";
    /// The revision is later than the present one.
    FutureRevision: "mvcc: required revision is a future revision";
    /// The quota is exceeded.
    NoSpace: "mvcc: database space exceeded";
    /// There is no such lease.
    LeaseNotFound: "requested lease not found";
    /// The lease's id is in use.
    LeaseExists: "lease already exists";
    /// The TTL is above etcd's maximum.
    LeaseTooLong: "too large lease TTL";
}
