//! Measures the library's cost beside the fewest calls that could do the same, and beside other clients. This file
//! turns a command line into benches; `cargo xtask bench` is the way to call it.

mod args;
mod benches;
mod eldest_peer;
mod etcdctl;
#[cfg(feature = "profile")]
mod flame;
mod kept;
mod limit;
mod options;
mod outside;
mod peer;
mod plot;
mod process;
mod report;
mod rpc;
mod run;
mod samples;
mod serve;
mod stages;
mod standing;
mod tables;
mod zookeeper;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use args::{Args, Asked};
use options::Keep;
use report::{Report, Verdict};
use run::Run;

#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

fn main() -> Result<ExitCode> {
    eldest::guard::init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, socket] = &args[..]
        && word == benches::supervised::REPORT_START
    {
        benches::supervised::report_start(socket.as_ref())?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    if let Some(("peer", rest)) = args.split_first().map(|(first, rest)| (&**first, rest)) {
        runtime.block_on(async { tokio::spawn(serve::serve(rest.to_vec())).await? })?;
        return Ok(ExitCode::SUCCESS);
    }
    let args = match Args::parse(&args)? {
        Asked::All(runs) => {
            let start = Instant::now();
            let mut measured = true;
            for args in &runs {
                measured &= runtime.block_on(measure(args))?.measured;
            }
            let kept = runs
                .iter()
                .find_map(|args| args.options.keep.as_ref().map(Keep::folder));
            plot::run(kept.unwrap_or(args::FOLDER.as_ref()))?;
            println!("all of it: {:.0} s", start.elapsed().as_secs_f64());
            return Ok(exit(measured));
        }
        Asked::Plot(folder) => {
            plot::run(&folder)?;
            return Ok(ExitCode::SUCCESS);
        }
        Asked::Help => {
            print!("{}", args::help());
            return Ok(ExitCode::SUCCESS);
        }
        Asked::Needs(args) => {
            for name in args.needs() {
                println!("{name}");
            }
            return Ok(ExitCode::SUCCESS);
        }
        Asked::Measure(args) => args,
    };
    let verdict = runtime.block_on(measure(&args))?;
    Ok(exit(if args.options.check {
        verdict.reached
    } else {
        verdict.measured
    }))
}

fn exit(is_well: bool) -> ExitCode {
    if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs the benches.
async fn measure(args: &Args) -> Result<Verdict> {
    let mut report = Report::new(&args.options);
    for bench in &args.benches {
        let start = Instant::now();
        let mut run = Run::new(bench.name, &args.options, &mut report);
        #[cfg(feature = "profile")]
        let picture = run.sampled()?;
        if let Err(error) = (bench.run)(&mut run).await {
            report.fail(bench.name, &error);
        }
        #[cfg(feature = "profile")]
        if let Some(picture) = picture {
            match picture.draw() {
                Ok(svg) => report.say(format_args!("  drawn: {}", svg.display())),
                Err(error) => report.fail(bench.name, &error),
            }
        }
        let took = start.elapsed().as_secs_f64();
        report.say(format_args!("  {}: {took:.1} s", bench.name));
    }
    report.finish()
}
