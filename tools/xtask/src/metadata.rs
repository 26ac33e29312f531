//! Reads cargo's machine-readable output: the library's features, tests and dependencies, and the places of built
//! binaries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::published::{LIBRARY, PUBLISHED};
use crate::setup;
use crate::stage::Stage;
use crate::version::Version;

/// What a package is to whoever depends on it.
#[derive(Debug, Default)]
pub(crate) struct Package<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    pub(crate) licence: Option<&'a str>,
    /// `None`: this workspace.
    pub(crate) source: Option<&'a str>,
    /// Dependencies of any version.
    pub(crate) wild: Vec<&'a str>,
}

/// The workspace as cargo sees it.
pub(crate) struct Metadata(Value);

impl Metadata {
    /// The library alone; downloads nothing.
    pub(crate) fn of_workspace(stage: &Stage) -> Result<Self> {
        Self::read(stage, &["--no-deps"])
    }

    /// With every dependency of this machine's platform. Without that filter cargo downloads the
    /// binaries of etcd for all platforms.
    pub(crate) fn with_dependencies(stage: &Stage) -> Result<Self> {
        Self::read(
            stage,
            &["--all-features", "--filter-platform", &host(stage)?],
        )
    }

    fn read(stage: &Stage, args: &[&str]) -> Result<Self> {
        let mut cargo = setup::cargo(["metadata", "--format-version", "1"])?;
        let text = stage.output(cargo.args(args))?;
        Ok(Self(
            serde_json::from_str(&text).context("reading cargo's metadata")?,
        ))
    }

    /// The library's features, without `default`.
    pub(crate) fn features(&self) -> Result<Vec<&str>> {
        let features = self.library()?["features"]
            .as_object()
            .context("features")?;
        Ok(features
            .keys()
            .map(String::as_str)
            .filter(|name| *name != "default")
            .collect())
    }

    /// The names of the integration tests of the library and of the crates that are published with it.
    pub(crate) fn tests(&self) -> Vec<&str> {
        let packages = list(&self.0["packages"]).iter();
        let published = packages.filter(|package| {
            let name = package["name"].as_str();
            name.is_some_and(|name| PUBLISHED.contains(&name))
        });
        let targets = published.flat_map(|package| list(&package["targets"]));
        let tests =
            targets.filter(|target| list(&target["kind"]).iter().any(|kind| kind == "test"));
        tests.filter_map(|target| target["name"].as_str()).collect()
    }

    /// The version of `dependency` the library asks for.
    pub(crate) fn requirement(&self, dependency: &str) -> Result<&str> {
        let dependencies = list(&self.library()?["dependencies"]);
        let found = dependencies
            .iter()
            .find(|found| found["name"] == dependency);
        let found = found.with_context(|| format!("{LIBRARY} does not depend on {dependency}"))?;
        found["req"].as_str().context("requirement")
    }

    /// The names of what the library needs for its features and its tests alone, and its users do not.
    pub(crate) fn only_for_others(&self) -> Result<BTreeSet<&str>> {
        let dependencies = list(&self.library()?["dependencies"]).iter();
        let (always, others): (Vec<_>, Vec<_>) =
            dependencies.partition(|found| found["kind"].is_null() && found["optional"] != true);
        let always: BTreeSet<&str> = always
            .iter()
            .filter_map(|found| found["name"].as_str())
            .collect();
        let others = others.iter().filter_map(|found| found["name"].as_str());
        Ok(others.filter(|name| !always.contains(name)).collect())
    }

    /// The library's version.
    pub(crate) fn version(&self) -> Result<&str> {
        self.library()?["version"].as_str().context("version")
    }

    /// The Rust version the library declares.
    pub(crate) fn rust_version(&self) -> Result<Version> {
        declared(self.library()?).context("the library declares no rust-version")
    }

    /// Everything needed to build the library: "name version" and the Rust version declared, if any.
    pub(crate) fn needed(&self) -> Result<BTreeMap<String, Option<Version>>> {
        let nodes: BTreeMap<&str, &Value> = list(&self.0["resolve"]["nodes"])
            .iter()
            .filter_map(|node| Some((node["id"].as_str()?, node)))
            .collect();
        let mut todo = vec![self.library()?["id"].as_str().context("id")?];
        let mut seen = BTreeSet::new();
        while let Some(id) = todo.pop() {
            if seen.insert(id) {
                let node = nodes.get(id).context("a package that is not resolved")?;
                let needed = list(&node["deps"])
                    .iter()
                    .filter(|dep| is_needed_to_build(dep));
                todo.extend(needed.filter_map(|dep| dep["pkg"].as_str()));
            }
        }
        ensure!(
            seen.len() > 1,
            "cargo's metadata names no dependency of the library"
        );
        let packages = list(&self.0["packages"]).iter();
        let needed =
            packages.filter(|package| package["id"].as_str().is_some_and(|id| seen.contains(id)));
        let described = needed.filter_map(|package| {
            let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
            Some((format!("{name} {version}"), declared(package)))
        });
        Ok(described.collect())
    }

    /// Every package, this workspace's included.
    pub(crate) fn packages(&self) -> Vec<Package<'_>> {
        let described = list(&self.0["packages"]).iter().filter_map(|package| {
            let wild = list(&package["dependencies"])
                .iter()
                .filter(|dependency| dependency["req"] == "*" && dependency["path"].is_null());
            Some(Package {
                name: package["name"].as_str()?,
                version: package["version"].as_str()?,
                licence: package["license"].as_str(),
                source: package["source"].as_str(),
                wild: wild
                    .filter_map(|dependency| dependency["name"].as_str())
                    .collect(),
            })
        });
        described.collect()
    }

    fn library(&self) -> Result<&Value> {
        let packages = list(&self.0["packages"]);
        let found = packages.iter().find(|package| package["name"] == LIBRARY);
        found.with_context(|| format!("no package {LIBRARY} in the workspace"))
    }
}

/// This machine, as a target to compile for.
pub(crate) fn host(stage: &Stage) -> Result<String> {
    let rustc = stage.output(setup::program("rustc").arg("-vV"))?;
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

/// The binary of this name, if this line of `cargo build --message-format=json` says where it is.
pub(crate) fn executable(line: &str, name: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    // A library's target is named as Rust names it.
    let rust = |name: &str| name.replace('-', "_");
    let named = message["target"]["name"].as_str().map(rust) == Some(rust(name));
    if message["reason"] != "compiler-artifact" || !named {
        return None;
    }
    message["executable"].as_str().map(PathBuf::from)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn declared(package: &Value) -> Option<Version> {
    package["rust_version"].as_str().and_then(Version::parse)
}

/// Not only by tests: cargo writes the kind of a normal dependency as null.
fn is_needed_to_build(dependency: &Value) -> bool {
    let kinds = list(&dependency["dep_kinds"]);
    kinds
        .iter()
        .any(|kind| kind["kind"].is_null() || kind["kind"] == "build")
}

#[cfg(test)]
mod tests {
    use super::{Metadata, executable};
    use crate::version::Version;
    use serde_json::json;
    use std::path::PathBuf;

    fn sample() -> Metadata {
        Metadata(json!({
            "packages": [
                {"id": "e", "name": "eldest", "version": "0.1.0", "rust_version": "1.88",
                 "features": {"default": [], "tls": [], "testing": []},
                 "dependencies": [{"name": "a", "req": "^1.2", "kind": null, "optional": false},
                    {"name": "a", "req": "^1.2", "kind": "dev", "optional": false},
                    {"name": "b", "req": "^2", "kind": null, "optional": true},
                    {"name": "t", "req": "^3", "kind": "dev", "optional": false}],
                 "targets": [{"name": "eldest", "kind": ["lib"]}, {"name": "smoke", "kind": ["test"]}]},
                {"id": "h", "name": "eldest-http", "targets": [{"name": "http", "kind": ["test"]}]},
                {"id": "n", "name": "eldest-node", "targets": [{"name": "node", "kind": ["test"]}]},
                {"id": "a", "name": "a", "version": "1.2.3", "rust_version": "1.63.0"},
                {"id": "b", "name": "b", "version": "2.0.0", "rust_version": null},
                {"id": "t", "name": "t", "version": "3.0.0", "rust_version": "1.99"},
            ],
            "resolve": {"nodes": [
                {"id": "e", "deps": [
                    {"pkg": "a", "dep_kinds": [{"kind": "dev"}, {"kind": null}]},
                    {"pkg": "t", "dep_kinds": [{"kind": "dev"}]}]},
                {"id": "a", "deps": [{"pkg": "b", "dep_kinds": [{"kind": "build"}]}]},
                {"id": "b", "deps": [{"pkg": "a", "dep_kinds": [{"kind": null}]}]},
                {"id": "t", "deps": []},
            ]},
        }))
    }

    #[test]
    fn what_only_tests_need_is_not_needed_to_build() {
        let needed = sample().needed().unwrap();
        let names: Vec<_> = needed.keys().map(String::as_str).collect();
        assert_eq!(names, ["a 1.2.3", "b 2.0.0", "eldest 0.1.0"]);
        assert_eq!(needed["a 1.2.3"], Some(Version(1, 63, 0)));
        assert_eq!(needed["b 2.0.0"], None);
    }

    #[test]
    fn the_library_is_described() {
        let sample = sample();
        assert_eq!(sample.features().unwrap(), ["testing", "tls"]);
        assert_eq!(sample.tests(), ["smoke", "http"]);
        assert_eq!(sample.requirement("a").unwrap(), "^1.2");
        assert!(sample.requirement("c").is_err());
        assert_eq!(sample.rust_version().unwrap(), Version(1, 88, 0));
    }

    #[test]
    fn what_features_and_tests_need_is_not_for_users() {
        let sample = sample();
        let others: Vec<_> = sample.only_for_others().unwrap().into_iter().collect();
        assert_eq!(others, ["b", "t"]);
    }

    #[test]
    fn only_the_artifact_of_the_demo_names_the_binary() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"eldest-demo"},"executable":"/t/debug/eldest-demo"}"#;
        assert_eq!(
            executable(line, "eldest-demo"),
            Some(PathBuf::from("/t/debug/eldest-demo"))
        );
        let other = r#"{"reason":"compiler-artifact","target":{"name":"build-script-build"},"executable":"/t/b"}"#;
        assert_eq!(executable(other, "eldest-demo"), None);
        let library =
            r#"{"reason":"compiler-artifact","target":{"name":"eldest-demo"},"executable":null}"#;
        assert_eq!(executable(library, "eldest-demo"), None);
        assert_eq!(executable("not JSON", "eldest-demo"), None);
    }
}
