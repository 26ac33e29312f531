//! Measures the library's cost beside the fewest calls that could do the same, and beside other clients. This file
//! turns a command line into benches; `cargo xtask bench` is the way to call it.

mod benches;
mod eldest_peer;
mod limit;
mod options;
mod peer;
mod report;
mod rpc;
mod run;
mod samples;
mod serve;
mod standing;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};

use options::Options;
use report::Report;
use run::Run;

#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

fn main() -> Result<ExitCode> {
    eldest::guard::init();
    let runtime = tokio::runtime::Runtime::new()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("peer", rest)) = words.split_first().map(|(first, rest)| (&**first, rest)) {
        runtime.block_on(async { tokio::spawn(serve::serve(rest.to_vec())).await? })?;
        return Ok(ExitCode::SUCCESS);
    }
    let command = Options::command().after_help(benches::help());
    let options = Options::from_arg_matches(&command.get_matches())?;
    let is_well = runtime.block_on(measure(&options))?;
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the benches. Returns true if none failed and, in a check, no figure is far from its target.
async fn measure(options: &Options) -> Result<bool> {
    let mut report = Report::new(options);
    for bench in benches::selected(options)? {
        let start = Instant::now();
        let mut run = Run::new(bench.name, options, &mut report);
        if let Err(error) = (bench.run)(&mut run).await {
            report.fail(bench.name, &error);
        }
        println!("  {}: {:.1} s", bench.name, start.elapsed().as_secs_f64());
    }
    Ok(report.finish())
}
