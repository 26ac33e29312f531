//! The core as a whole: sessions against a model of etcd, over a faulty network, in virtual time.

mod cluster;
mod net;
mod node;
mod properties;
mod scenarios;
mod sharing;
mod store;
mod world;
