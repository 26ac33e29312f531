//! The program `eldest-sim`.

// The root of the tests has the same modules: the tests are compiled without the program.
#[path = "simulator.rs"]
mod simulator;

use std::process::ExitCode;

use simulator::{inflict, kept, kind, mutant, notation, once, parallel, plan, run, world};

fn main() -> ExitCode {
    simulator::main()
}
