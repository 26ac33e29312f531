//! Tests routing over real sockets, by the view of a real etcd.
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

mod grpc;
mod hand_overs;
mod partitions;
mod stage;
mod views;
