//! Routes requests over real sockets, by what a real etcd shows.
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

mod grpc;
mod hand_overs;
mod partitions;
mod stage;
mod views;
