//! Runs the targets of `lab/fuzz/` for a few seconds, on the stable compiler: on examples, damaged examples, and noise.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use eldest::fuzzing::{TARGETS, Target};
use eldest_fixtures::damage::damaged;
use eldest_http::fuzzing as requests;
use fastrand::Rng;

/// The time for all targets together.
const BUDGET: Duration = Duration::from_secs(8);

/// Returns the targets: the library's parsers and its router.
fn targets() -> impl Iterator<Item = Target> {
    let request = Target {
        name: "request",
        read: requests::request,
        seeds: requests::SEEDS,
    };
    TARGETS.into_iter().chain([request])
}

#[test]
fn foreign_input_is_read_without_a_panic() {
    let targets: Vec<Target> = targets().collect();
    for target in &targets {
        let seed = fastrand::u64(..);
        let mut rng = Rng::with_seed(seed);
        let begin = Instant::now();
        let (mut tried, mut read) = (0_u64, 0_u64);
        let limit = BUDGET / targets.len() as u32;
        while tried < 100 || begin.elapsed() < limit {
            let bytes = damaged(&mut rng, target.seeds);
            let outcome = catch_unwind(AssertUnwindSafe(|| (target.read)(&bytes)));
            let was_read = outcome.unwrap_or_else(|panic| {
                eprintln!("{}, seed {seed}: {}", target.name, bytes.escape_ascii());
                resume_unwind(panic)
            });
            tried += 1;
            read += u64::from(was_read);
        }
        println!(
            "{}: {tried} tried, {read} of them read to the end",
            target.name
        );
        // Otherwise all input was refused at the first byte.
        assert!(
            read > 0 && read < tried,
            "{}: {read} of {tried}",
            target.name
        );
        for seed in target.seeds {
            let _ = (target.read)(seed);
        }
    }
}
