//! Names the packages that this workspace publishes.

/// The package everything here is about.
pub(crate) const LIBRARY: &str = "eldest";
/// The library and the crates that are published with it, in the order in which they build on one another.
pub(crate) const PUBLISHED: [&str; 6] = [CORE, LIBRARY, ROUTE, HTTP, TESTING, CLI];
/// The protocol's decisions.
pub(crate) const CORE: &str = "eldest-core";
/// The package that sends requests to the leader.
pub(crate) const ROUTE: &str = "eldest-route";
/// The package that answers who leads.
pub(crate) const HTTP: &str = "eldest-http";
/// The command `eldest`.
pub(crate) const CLI: &str = "eldest-cli";
/// The base of the tests of the library and of its users.
pub(crate) const TESTING: &str = "eldest-testing";
