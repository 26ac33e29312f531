//! The command `eldest`, driven from outside: its lines and objects, its exit codes, and what it leaves in etcd.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

mod access;
mod common;
mod doctor;
#[path = "../etcdctl/mod.rs"]
mod etcdctl;
#[path = "../grpc_proxy/mod.rs"]
mod grpc_proxy;
mod options;
mod pages;
mod resign;
#[path = "../sealed/mod.rs"]
mod sealed;
mod status;
mod terminal;
mod tls;
mod top;
mod watch;
