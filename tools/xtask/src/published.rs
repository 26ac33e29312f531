//! Names the packages that this workspace publishes.

/// The main package of the workspace.
pub(crate) const LIBRARY: &str = "eldest";
/// The library and the crates that are published with it, in the order in which they build on one another.
pub(crate) const PUBLISHED: [&str; 11] = [
    CORE, PROCESS, PEERS, GUARD, ETCD, LIBRARY, ROUTE, HTTP, STORE, TESTING, CLI,
];
/// The package with the protocol's decisions.
pub(crate) const CORE: &str = "eldest-core";
/// The package that observes the processes of a machine.
pub(crate) const PROCESS: &str = "eldest-process";
/// The package that exchanges signs of life between sessions.
pub(crate) const PEERS: &str = "eldest-peers";
/// The package that deletes the keys of processes that have ended.
pub(crate) const GUARD: &str = "eldest-guard";
/// The package that makes every call to etcd.
pub(crate) const ETCD: &str = "eldest-etcd";
/// The package that sends requests to the leader.
pub(crate) const ROUTE: &str = "eldest-route";
/// The package that answers which node leads.
pub(crate) const HTTP: &str = "eldest-http";
/// The package of the command `eldest`.
pub(crate) const CLI: &str = "eldest-cli";
/// The package that models etcd's store.
pub(crate) const STORE: &str = "eldest-store";
/// The package on which the tests of the library and of its users are based.
pub(crate) const TESTING: &str = "eldest-testing";
