//! Lists the stages of both tiers, in the order in which they run.

use std::fmt::Write as _;

use anyhow::{Result, bail, ensure};

use crate::stage::Stage;
use crate::{api, bench, checks, consumer, deny, docker, manifests, releases, simulate, suites};

/// The command that runs a stage when no stage is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// `cargo xtask test`: the checks that a change can break, within ten minutes.
    Test,
    /// `cargo xtask verify`: all other checks, within hours.
    Verify,
}

impl Tier {
    /// Returns the command as one types it.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Test => "cargo xtask test",
            Self::Verify => "cargo xtask verify",
        }
    }
}

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
    pub(crate) tier: Tier,
    pub(crate) about: &'static str,
    pub(crate) way: Way,
    pub(crate) run: fn(&mut Stage) -> Result<()>,
}

/// The first stage with tests that need external programs.
const TESTS: &str = "tests";

/// The stages of `cargo xtask check`: the checks that a contributor runs frequently, within a minute.
pub(crate) const CHECK: &[Entry] = &[
    SOURCE,
    quick(
        "quick",
        "all code, linted; the unit tests of changed packages; the simulator, briefly",
        checks::quick,
    ),
];

const SOURCE: Entry = Entry {
    way: Way::Beside,
    ..quick(
        "source",
        "formatting; one word for one thing; the links and limits of the pages; which room imports which, as ARCHITECTURE.md says",
        checks::source,
    )
};

pub(crate) const STAGES: &[Entry] = &[
    Entry {
        way: Way::BesideUntil(TESTS),
        ..quick(
            "prepare",
            "images, and the programs of others that tests need: fetched or made beside the stages after it",
            docker::prepare,
        )
    },
    SOURCE,
    Entry {
        way: Way::Needed,
        ..quick(
            "build",
            "all tests, programs and examples, compiled once, by clippy's driver with warnings denied",
            suites::build,
        )
    },
    // Half of the tests' time is waiting, which the simulator uses.
    Entry {
        way: Way::Beside,
        ..quick(
            "simulate",
            "the core against a model of etcd: its rules, kept plans, random faults from 3,000 seeds, 1,300 of them with challenges",
            simulate::short,
        )
    },
    quick("unit", "unit tests of all packages", suites::unit),
    quick(
        TESTS,
        "the library, the command, HTTP, the demo, the examples and those in the documentation on etcd 3.7; three nodes in containers whose leader is killed, \
         frozen, cut off; the compose file",
        suites::tests,
    ),
    thorough(
        "docs",
        "the documentation builds without a warning",
        checks::docs,
    ),
    thorough(
        "api",
        "the public interface of each library is the one listed in docs/api",
        api::stage,
    ),
    thorough(
        "seeds",
        "the core against a model of etcd: 12,000 seeds without challenges and with them, and every two faults of two nodes",
        simulate::stage,
    ),
    thorough(
        "stack",
        "hours of a cluster's life in simulated time",
        suites::stack,
    ),
    thorough(
        "examples",
        "the examples that bring a client of their own: fenced writes to PostgreSQL, spans for OpenTelemetry",
        suites::examples,
    ),
    thorough(
        "long",
        "tests of minutes: every member replaced, a restored etcd, agents that fail, the status page, the runbooks, what hundreds of cycles leave",
        suites::long,
    ),
    thorough(
        "deny",
        "licences, bans, sources and advisories of all dependencies, by deny.toml, with cargo-deny",
        deny::stage,
    ),
    thorough(
        "consumer",
        "README's program against the package as it would be published, AWS' cryptography; dependencies counted",
        consumer::run,
    ),
    thorough(
        "manifests",
        "the Helm chart, and the kustomize bases rendered from it, against the schema, if Python is there",
        manifests::stage,
    ),
    thorough(
        "chaos",
        "every fault of the harness on a real cluster, and one random pair",
        suites::chaos,
    ),
    thorough(
        "bench",
        "allocations counted, a few ratios to bare calls of etcd; the tests of the benches",
        bench::stage,
    ),
    thorough(
        "features",
        "clippy of the library for each feature by itself, and of what is built without the others",
        checks::features,
    ),
    thorough(
        "versions",
        "what depends on etcd's version against 3.5 and 3.6, the smoke test against 3.4, an upgrade",
        releases::versions,
    ),
    thorough(
        "containers",
        "the Dockerfile's images, then all tests in containers on the Docker Engine, which is started if need be",
        suites::containers,
    ),
    thorough(
        "leaks",
        "ten thousand cycles in an election, twice, and what they leave behind",
        suites::leaks,
    ),
];

const fn quick(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Stage) -> Result<()>,
) -> Entry {
    Entry {
        name,
        tier: Tier::Test,
        about,
        way: Way::Alone,
        run,
    }
}

const fn thorough(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Stage) -> Result<()>,
) -> Entry {
    Entry {
        tier: Tier::Verify,
        ..quick(name, about, run)
    }
}

/// Returns the stages of one tier.
pub(crate) fn of(tier: Tier) -> impl Iterator<Item = &'static Entry> {
    STAGES.iter().filter(move |stage| stage.tier == tier)
}

/// Returns the name of a stage of that tier.
pub(crate) fn named(tier: Tier, name: &str) -> Result<&'static str> {
    let Some(stage) = STAGES.iter().find(|stage| stage.name == name) else {
        bail!(
            "there is no stage `{name}`; the stages are\n{}",
            describe(tier)
        );
    };
    let command = stage.tier.command();
    ensure!(stage.tier == tier, "`{name}` is a stage of `{command}`");
    Ok(stage.name)
}

/// Returns one line for each stage of a tier.
pub(crate) fn describe(tier: Tier) -> String {
    of(tier).fold(String::new(), |mut text, stage| {
        let _ = writeln!(text, "  {:<12} {}", stage.name, stage.about);
        text
    })
}
