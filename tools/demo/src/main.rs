//! The demo: three nodes in processes of their own hand over a leadership, are killed and frozen, and the demo checks
//! every promise before the user's eyes. `cargo xtask demo` builds and starts it.

use std::process::ExitCode;

#[cfg(unix)]
mod args;
#[cfg(unix)]
mod demo;
#[cfg(unix)]
mod events;
#[cfg(unix)]
mod fleet;
#[cfg(unix)]
mod model;
#[cfg(unix)]
mod node;
#[cfg(unix)]
mod script;
#[cfg(unix)]
mod table;
#[cfg(unix)]
mod view;
#[cfg(unix)]
mod world;

#[cfg(unix)]
fn main() -> ExitCode {
    let options = <args::Options as clap::Parser>::parse();
    // The runtime has one thread: the kernel ends the nodes with the thread that started them, which must be the main
    // one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        match options.task {
            Some(args::Task::Node(setup)) => {
                let run = Box::pin(node::run(setup));
                run.await.map(|()| ExitCode::SUCCESS)
            }
            None => Box::pin(demo::run(options)).await,
        }
    });
    // A node's pending read of its input would keep the runtime from ending.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("the demo stops and continues processes by Unix signals; it does not run here");
    ExitCode::FAILURE
}
