//! Explores every state with stateright, or finds the shortest path to a bad state.

use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

type PathOf<M> = Path<<M as Model>::State, <M as Model>::Action>;

/// A model whose states are explored.
pub trait Explored: Clone + Send + Sync + 'static
where
    Self: Model<State: Clone + fmt::Debug + PartialEq + Hash + Send + Sync>,
    Self: Model<Action: Clone + fmt::Debug + PartialEq + Send + Sync>,
{
    /// Describes a path step by step.
    fn describe_path(&self, path: PathOf<Self>) -> String;

    /// Returns the kinds of steps that were taken at least once.
    fn happened(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Checks every state.
    fn check(self, threads: usize) -> Report {
        Report::of(self, threads)
    }

    /// Finds the shortest path to a state that breaks a property.
    fn counterexample(&self) -> Option<Counterexample> {
        Counterexample::of(self)
    }
}

/// The result of a search through all states.
#[derive(Debug)]
pub struct Report {
    states: usize,
    steps: usize,
    depth: usize,
    took: Duration,
    /// For each property: the name, whether a state must be reachable, and whether the property holds.
    properties: Vec<(&'static str, bool, bool)>,
    happened: Vec<&'static str>,
    counterexample: Option<Counterexample>,
}

/// The shortest path to a state in which a property does not hold.
#[derive(Debug)]
pub struct Counterexample {
    property: &'static str,
    steps: usize,
    path: String,
}

impl Counterexample {
    /// The property.
    pub fn property(&self) -> &'static str {
        self.property
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.steps
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "NOT \"{}\":", self.property)?;
        f.write_str(&self.path)
    }
}

impl Report {
    /// Checks every state. A model that obeys every rule needs memory for all states: about 60 bytes each, and a few
    /// hundred for each that is not explored yet.
    fn of<M: Explored>(model: M, threads: usize) -> Self {
        let started = Instant::now();
        let again = model.clone();
        let checker = model.checker().threads(threads);
        let checker = checker.finish_when(HasDiscoveries::AnyFailures);
        let checker = checker.spawn_bfs().join();
        let found = checker.discoveries();
        let mut properties = Vec::new();
        let mut failed = false;
        for property in checker.model().properties() {
            let possible = property.expectation == Expectation::Sometimes;
            let found = found.contains_key(property.name);
            failed |= found && !possible;
            properties.push((property.name, possible, found == possible));
        }
        Self {
            states: checker.unique_state_count(),
            steps: checker.state_count(),
            depth: checker.max_depth(),
            took: started.elapsed(),
            properties,
            happened: checker.model().happened(),
            counterexample: failed.then(|| Counterexample::of(&again)).flatten(),
        }
    }
}

impl Counterexample {
    /// Finds the shortest path to a state that breaks a property.
    fn of<M: Explored>(model: &M) -> Option<Self> {
        let mut shortest: Option<(&'static str, PathOf<M>)> = None;
        let mut depth = usize::MAX;
        // Each search returns a shorter path if there is one: within a block stateright keeps the last.
        loop {
            let checker = model.clone().checker().target_max_depth(depth);
            let checker = checker.finish_when(HasDiscoveries::AnyFailures);
            let checker = checker.spawn_bfs().join();
            let bad = |name: &str| {
                let properties = model.properties();
                let mut bad = properties
                    .iter()
                    .filter(|p| p.expectation.discovery_is_failure());
                bad.any(|property| property.name == name)
            };
            let found = checker
                .discoveries()
                .into_iter()
                .filter(|(name, _)| bad(name));
            let found = found.map(|(name, path)| (path.clone().into_vec().len(), name, path));
            match found.min_by_key(|(length, name, _)| (*length, *name)) {
                Some((length, name, path)) if length < depth => {
                    depth = length;
                    shortest = Some((name, path));
                }
                _ => break,
            }
        }
        shortest.map(|(property, path)| Self {
            property,
            steps: depth - 1,
            path: model.describe_path(path),
        })
    }
}

impl Report {
    /// Returns true if every property holds.
    pub fn is_good(&self) -> bool {
        self.properties.iter().all(|(_, _, good)| *good)
    }

    /// Returns the number of states.
    pub fn states(&self) -> usize {
        self.states
    }

    /// Returns the kinds of steps that were taken at least once.
    pub fn happened(&self) -> &[&'static str] {
        &self.happened
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            states,
            steps,
            depth,
            ..
        } = self;
        let seconds = self.took.as_secs_f64();
        writeln!(
            f,
            "{states} states, {steps} steps between them, at most {} from the start, {seconds:.1} s",
            depth.saturating_sub(1)
        )?;
        for (name, possible, good) in &self.properties {
            let verdict = match (possible, good) {
                (false, true) if self.counterexample.is_some() => "no counterexample so far",
                (false, true) => "holds in every state",
                (false, false) => "DOES NOT HOLD",
                (true, true) => "happens",
                (true, false) if self.counterexample.is_some() => "has not happened so far",
                (true, false) => "NEVER HAPPENS",
            };
            writeln!(f, "{name}: {verdict}")?;
        }
        if !self.happened.is_empty() {
            writeln!(f, "steps of these kinds: {}", self.happened.join(", "))?;
        }
        if let Some(counterexample) = &self.counterexample {
            write!(f, "{counterexample}")?;
        }
        Ok(())
    }
}
