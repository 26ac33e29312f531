//! Lists the stages of both tiers, in the order in which they run.

use anyhow::{Context, Result};

use crate::stage::Stage;
use crate::{api, bench, checks, consumer, containers, deny, manifests, matrix, simulate, suites};

/// How a stage runs among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Alone,
    /// None of the later stages can pass after its failure, so they do not run.
    Needed,
    /// At a lower priority beside all stages after it.
    Beside,
    /// The same, but it ends before that stage.
    BesideUntil(&'static str),
}

/// A stage of the list.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) way: Way,
    pub(crate) run: fn(&mut Stage) -> Result<()>,
}

/// The first stage with tests that need external programs.
const TESTS: &str = "tests";

/// The stages of `cargo xtask check`: the checks that a contributor runs frequently, within a minute.
pub(crate) const CHECK: &[Entry] = &[
    SOURCE,
    entry(
        "quick",
        "all code, linted; the unit tests of changed packages; the simulator, briefly",
        checks::quick,
    ),
];

const SOURCE: Entry = Entry {
    way: Way::Beside,
    ..entry(
        "source",
        "formatting; one word for one thing; the links and limits of the pages; which room imports which, as ARCHITECTURE.md says",
        checks::source,
    )
};

/// The stages of `cargo xtask test`: the checks that a change can break, within ten minutes.
pub(crate) const TEST: &[Entry] = &[
    Entry {
        way: Way::BesideUntil(TESTS),
        ..entry(
            "prepare",
            "images, and the programs of others that tests need: fetched or made beside the stages after it",
            containers::prepare,
        )
    },
    SOURCE,
    Entry {
        way: Way::Needed,
        ..entry(
            "build",
            "all tests, programs and examples, compiled once, by clippy's driver with warnings denied",
            suites::build,
        )
    },
    // Half of the tests' time is waiting, which the simulator uses.
    Entry {
        way: Way::Beside,
        ..entry(
            "simulate",
            "the core against a model of etcd: its rules, kept plans, random faults from 3,000 seeds, 1,300 of them with challenges",
            simulate::short,
        )
    },
    entry("unit", "unit tests of all packages", suites::unit),
    entry(
        TESTS,
        "the library, the command, HTTP, the demo, the examples and those in the documentation on etcd 3.7; three nodes in containers whose leader is killed, \
         frozen, cut off; the compose file",
        suites::tests,
    ),
];

/// The stages of `cargo xtask verify`: all other checks, within hours.
pub(crate) const VERIFY: &[Entry] = &[
    entry(
        "docs",
        "the documentation builds without a warning",
        checks::docs,
    ),
    entry(
        "api",
        "the public interface of each library is the one listed in docs/api",
        api::stage,
    ),
    entry(
        "seeds",
        "the core against a model of etcd: 12,000 seeds without challenges and with them, and every two faults of two nodes",
        simulate::stage,
    ),
    entry(
        "stack",
        "hours of a cluster's life in simulated time",
        suites::stack,
    ),
    entry(
        "examples",
        "the examples that bring a client of their own: fenced writes to PostgreSQL, spans for OpenTelemetry",
        suites::examples,
    ),
    entry(
        "long",
        "tests of minutes: every member replaced, a restored etcd, agents that fail, the status page, the runbooks, what hundreds of cycles leave",
        suites::long,
    ),
    entry(
        "deny",
        "licences, bans, sources and advisories of all dependencies, by deny.toml, with cargo-deny",
        deny::stage,
    ),
    entry(
        "consumer",
        "README's program against the package as it would be published, AWS' cryptography; dependencies counted",
        consumer::run,
    ),
    entry(
        "manifests",
        "the Helm chart, and the kustomize bases rendered from it, against the schema, if Python is there",
        manifests::stage,
    ),
    entry(
        "chaos",
        "every fault of the harness on a real cluster, and one random pair",
        suites::chaos,
    ),
    entry(
        "bench",
        "allocations counted, a few ratios to bare calls of etcd; the tests of the benches",
        bench::stage,
    ),
    entry(
        "features",
        "clippy of the library for each feature by itself, and of what is built without the others",
        checks::features,
    ),
    entry(
        "versions",
        "what depends on etcd's version against 3.5 and 3.6, the smoke test against 3.4, an upgrade",
        matrix::versions,
    ),
    entry(
        "containers",
        "the Dockerfile's images, then all tests in containers on the Docker Engine, which is started if need be",
        suites::containers,
    ),
    entry(
        "leaks",
        "ten thousand cycles in an election, twice, and what they leave behind",
        suites::leaks,
    ),
];

const fn entry(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Stage) -> Result<()>,
) -> Entry {
    Entry {
        name,
        about,
        way: Way::Alone,
        run,
    }
}

/// Returns the name of one of these stages.
pub(crate) fn named(stages: &'static [Entry], name: &str) -> Result<&'static str> {
    let stage = stages.iter().find(|stage| stage.name == name);
    let missing = || format!("no stage `{name}`; the stages are\n{}", describe(stages));
    Ok(stage.with_context(missing)?.name)
}

/// Returns one line for each of these stages.
pub(crate) fn describe(stages: &[Entry]) -> String {
    let lines = stages.iter();
    let lines = lines.map(|stage| format!("  {:<12} {}\n", stage.name, stage.about));
    lines.collect()
}
