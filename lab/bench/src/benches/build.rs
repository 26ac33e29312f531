//! `build`: the cost of building the library with its default features, beside etcd-client by itself.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use futures::FutureExt;
use tokio::process::Command;

use super::Bench;
use crate::outside::USERS;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::Samples;

pub(super) const BENCH: Bench = Bench {
    name: "build",
    about: "crates and clean build of a user's package, beside etcd-client by itself",
    checked: false,
    for_each_kind: false,
    others: &[USERS],
    run: |run| measure(run).boxed(),
    peer: |_, _| async { bail!("build has no peers") }.boxed(),
};

/// The package of each peer. The limit is the client, which every program needs.
const PACKAGES: [(&str, &str); 2] = [("limit", "without"), ("eldest", "with")];
/// The dependencies that a program needs when it runs, and when it is built.
const CRATES: [(&str, &str); 2] = [("crates", "normal"), ("crates to build", "normal,build")];

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let Some(users) = run.outside(USERS) else {
        return Ok(());
    };
    let users = Path::new(&users);
    for (what, edges) in CRATES {
        let mut rows = Vec::new();
        for (peer, package) in PACKAGES {
            let args = ["tree", "--quiet", "--prefix", "none", "--edges", edges];
            let tree = cargo(&users.join(package), None, &args).await?;
            let crates = crates(&tree);
            ensure!(crates > 1, "{package} needs nothing: {tree}");
            rows.push(row(peer, [crates as f64]));
        }
        report_rows(run, what, "", &rows);
    }
    if run.options.quick {
        run.report
            .say("  skipped the builds themselves: they take longer than --quick allows");
        return Ok(());
    }
    let mut took = PACKAGES.map(|(peer, _)| row(peer, []));
    for _ in 0..run.samples(3, 1) {
        for (row, (_, package)) in took.iter_mut().zip(PACKAGES) {
            let target = tempfile::tempdir_in(users)?;
            let start = Instant::now();
            let args = ["build", "--quiet", "--offline"];
            cargo(&users.join(package), Some(target.path()), &args).await?;
            row.samples.add(start.elapsed().as_secs_f64());
        }
    }
    report_rows(run, "clean", "s", &took);
    Ok(())
}

fn row<const N: usize>(peer: &str, samples: [f64; N]) -> Row {
    Row {
        peer: peer.to_owned(),
        samples: Samples::from_iter(samples),
    }
}

fn report_rows(run: &mut Run<'_>, what: &str, unit: &'static str, rows: &[Row]) {
    let group = Group {
        what,
        ..run.group(1, unit)
    };
    run.report.rows(group, rows);
}

/// Returns the output of cargo in that folder.
async fn cargo(folder: &Path, target: Option<&Path>, args: &[&str]) -> Result<String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    cargo.current_dir(folder).args(args).kill_on_drop(true);
    cargo.env("CARGO_INCREMENTAL", "0");
    if let Some(target) = target {
        cargo.env("CARGO_TARGET_DIR", target);
    }
    let output = cargo.output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo {args:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Counts the crates in the output of `cargo tree --prefix none`, whose first line is the package itself.
fn crates(tree: &str) -> usize {
    let named = tree.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?, words.next()?))
    });
    named.collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::crates;

    #[test]
    fn crates_are_counted_once() {
        let tree =
            "with v0.0.0 (/t/with)\na v1.0.0\nb v2.0.0\nb v1.0.0 (proc-macro)\n\na v1.0.0 (*)\n";
        assert_eq!(crates(tree), 3);
    }
}
