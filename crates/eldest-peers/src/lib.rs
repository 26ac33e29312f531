//! Exchanges signs of life between sessions of [`eldest`](https://docs.rs/eldest), leader election on etcd, over TCP: a
//! silent leader is suspected within a fraction of a second. This crate is internal to `eldest`: semantic versioning does
//! not cover its interface.
//!
//! | item | contents |
//! |---|---|
//! | [`Answering`], [`Alive`] | the port of a session: sends signs of life while the session is alive |
//! | [`Asking`], [`Watched`], [`Event`] | the connections to watched sessions, and which of these are silent |
//! | [`Machine`] | the time and the randomness of both |
//! | [`wire`] | the messages, each of a fixed length |
//!
//! A suspicion may be wrong at any time and grants nothing. The messages carry no authority, and no port is opened
//! without an address. The decisions are a state machine without I/O (`peer`), which takes the time as an argument.

mod answering;
mod asking;
mod machine;
mod pace;
mod peer;
#[cfg(test)]
mod staged;
#[cfg(test)]
mod tests;
pub mod wire;

pub use answering::{Alive, Answering};
pub use asking::{Asking, Event, Watched};
pub use machine::Machine;
