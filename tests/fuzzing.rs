//! The targets of `tools/fuzz/` for a few seconds, on the stable compiler: examples, examples that were damaged, and noise.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use eldest::fuzzing::{TARGETS, Target};
use eldest_http::fuzzing as requests;
use fastrand::Rng;

/// For all targets together.
const BUDGET: Duration = Duration::from_secs(8);

/// What is damaged most, and how, is up to chance; the sizes are those of what is really read.
fn damaged(rng: &mut Rng, examples: &[&[u8]]) -> Vec<u8> {
    if rng.u8(..) < 16 {
        return (0..rng.usize(..200)).map(|_| rng.u8(..)).collect();
    }
    let mut bytes = examples[rng.usize(..examples.len())].to_vec();
    for _ in 0..rng.usize(..6) {
        let at = rng.usize(..=bytes.len());
        match rng.u8(..6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            1 if at < bytes.len() => bytes[at] = rng.u8(..),
            2 => bytes.insert(at, rng.u8(..)),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            4 => bytes.truncate(at),
            // A part of this or another example, once more.
            _ => {
                let other = examples[rng.usize(..examples.len())];
                let (from, to) = (rng.usize(..=other.len()), rng.usize(..=other.len()));
                let part = &other[from.min(to)..from.max(to)];
                bytes.splice(at..at, part.iter().copied());
            }
        }
    }
    bytes
}

/// What the library reads, and what its router does.
fn targets() -> impl Iterator<Item = Target> {
    let request = Target {
        name: "request",
        read: requests::request,
        seeds: requests::SEEDS,
    };
    TARGETS.into_iter().chain([request])
}

#[test]
fn whatever_others_send_is_read_without_a_panic() {
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
        // Else all of it was refused at the first byte.
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
