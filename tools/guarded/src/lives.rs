//! Adds lives to the subject's session: processes, cgroups and promises that a test made.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail};
use eldest::Session;
use eldest::internal::Inside;
use eldest::internal::guard::{Life, also};
use eldest::internal::process::Process;
use eldest_process::pidfd;

/// Carries out `process PID`, `program PID`, `cgroup FOLDER` (which the guard may kill), `watch FOLDER` (which it may not),
/// `promise MILLISECONDS`, and `bound PID`, a process to which promises are made.
pub(crate) fn add(order: &str, session: &Session) -> Result<()> {
    let (word, rest) = order.split_once(' ').context("no life is named")?;
    let process = || -> Result<_> { Ok(pidfd::open(rest.parse()?)?) };
    let read = |name: &str| {
        OpenOptions::new()
            .read(true)
            .open(Path::new(rest).join(name))
    };
    let write = |name: &str| {
        OpenOptions::new()
            .write(true)
            .open(Path::new(rest).join(name))
    };
    if word == "promise" {
        let session = Inside::from(session);
        let time = Duration::from_millis(rest.parse()?);
        session.promise(session.env().now().after(time))?;
        println!("added {order}");
        return Ok(());
    }
    if word == "bound" {
        Inside::from(session).outlive(&Process::open(rest.parse()?).map_err(Error::msg)?)?;
        println!("added {order}");
        return Ok(());
    }
    let life = match word {
        "process" => Life::Process(process()?),
        "program" => Life::Program(process()?),
        "cgroup" => Life::Cgroup {
            events: read("cgroup.events")?.into(),
            kill: Some(write("cgroup.kill")?.into()),
        },
        "watch" => Life::Cgroup {
            events: read("cgroup.events")?.into(),
            kill: None,
        },
        // A guard must refuse this life.
        "other-kill" => Life::Cgroup {
            events: read("cgroup.events")?.into(),
            kill: Some(write("cgroup.max.depth")?.into()),
        },
        other => bail!("no such life: {other}"),
    };
    also(session, life)?;
    println!("added {order}");
    Ok(())
}
