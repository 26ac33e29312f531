//! Tests of minutes, which only `cargo xtask verify` runs. This package has no code beside them.
