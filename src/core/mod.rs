//! The pure core: what a session decides, with time as an argument and std alone.
pub mod time;
