//! Asks cargo for the library's features, tests and dependencies, and for the places of built binaries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use cargo_metadata::semver::Version;
use cargo_metadata::{DependencyKind, Message, MetadataCommand, NodeDep, Package, PackageId};

use crate::published::LIBRARY;
use crate::setup;
use crate::stage::Stage;
use crate::workspaces::Workspace;

/// The workspace as cargo describes it.
pub(crate) struct Metadata(cargo_metadata::Metadata);

impl Metadata {
    /// Reads the library alone; downloads nothing.
    pub(crate) fn of_workspace(stage: &Stage) -> Result<Self> {
        Self::read(stage, Workspace::Product, &["--no-deps"])
    }

    /// Reads that workspace with every dependency of this machine's platform. Without that filter cargo downloads the
    /// binaries of etcd for all platforms.
    pub(crate) fn with_dependencies(stage: &Stage, workspace: Workspace) -> Result<Self> {
        Self::read(
            stage,
            workspace,
            &["--all-features", "--filter-platform", &host(stage)?],
        )
    }

    /// Reads the product with the dependencies that it has by default.
    pub(crate) fn by_default(stage: &Stage) -> Result<Self> {
        let args = ["--filter-platform", &host(stage)?];
        Self::read(stage, Workspace::Product, &args)
    }

    fn read(stage: &Stage, workspace: Workspace, args: &[&str]) -> Result<Self> {
        let mut cargo = workspace.cargo(["metadata", "--format-version", "1"])?;
        let text = stage.output(cargo.args(args))?;
        let metadata = MetadataCommand::parse(text).context("reading cargo's metadata")?;
        Ok(Self(metadata))
    }

    /// Returns every package, including this workspace's.
    pub(crate) fn packages(&self) -> &[Package] {
        &self.0.packages
    }

    /// Returns the library's features, without `default` and without those that only combine others.
    pub(crate) fn features(&self) -> Result<Vec<&str>> {
        let all = self.library()?.features.iter();
        let own = all.filter(|(name, brings)| {
            let others = !brings.is_empty() && !brings.iter().any(|of| of.contains(['/', ':']));
            *name != "default" && !others
        });
        Ok(own.map(|(name, _)| name.as_str()).collect())
    }

    /// Returns the version of `dependency` that the library requires.
    pub(crate) fn requirement(&self, dependency: &str) -> Result<String> {
        let mut dependencies = self.library()?.dependencies.iter();
        let found = dependencies.find(|found| found.name == dependency);
        let found = found.with_context(|| format!("{LIBRARY} does not depend on {dependency}"))?;
        Ok(found.req.to_string())
    }

    /// Returns the library's dependencies that only its features and tests need: neither the library nor one of our
    /// packages below it always depends on them.
    pub(crate) fn only_for_others(&self) -> Result<BTreeSet<&str>> {
        let library = self.library()?;
        let mut always = BTreeSet::new();
        let mut todo = vec![library];
        while let Some(package) = todo.pop() {
            let needed = package.dependencies.iter();
            let needed =
                needed.filter(|found| found.kind == DependencyKind::Normal && !found.optional);
            for name in needed.map(|found| found.name.as_str()) {
                if always.insert(name) {
                    todo.extend(self.packages().iter().filter(|other| other.name == name));
                }
            }
        }
        let all = library.dependencies.iter().map(|found| found.name.as_str());
        Ok(all.filter(|name| !always.contains(name)).collect())
    }

    /// Returns the library's version.
    pub(crate) fn version(&self) -> Result<&Version> {
        Ok(&self.library()?.version)
    }

    /// Returns the Rust version that the library declares.
    pub(crate) fn rust_version(&self) -> Result<&Version> {
        let declared = self.library()?.rust_version.as_ref();
        declared.context("the library declares no rust-version")
    }

    /// Returns all packages needed to build the library: "name version" and the declared Rust version, if any.
    pub(crate) fn needed(&self) -> Result<BTreeMap<String, Option<&Version>>> {
        let resolved = self.0.resolve.as_ref().context("nothing is resolved")?;
        let nodes: BTreeMap<_, _> = resolved.nodes.iter().map(|node| (&node.id, node)).collect();
        let mut todo = vec![&self.library()?.id];
        let mut seen = BTreeSet::new();
        while let Some(id) = todo.pop() {
            if seen.insert(id) {
                let node = nodes.get(id).context("a package that is not resolved")?;
                let needed = node.deps.iter().filter(|dep| is_needed_to_build(dep));
                todo.extend(needed.map(|dep| &dep.pkg));
            }
        }
        ensure!(
            seen.len() > 1,
            "cargo's metadata names no dependency of the library"
        );
        let needed = self.packages().iter();
        let needed = needed.filter(|package| seen.contains(&package.id));
        let described = needed.map(|package| {
            let name = format!("{} {}", package.name, package.version);
            (name, package.rust_version.as_ref())
        });
        Ok(described.collect())
    }

    /// Returns what the library depends on: the name in its source, and the package.
    pub(crate) fn dependencies(&self) -> Result<Vec<(&str, &PackageId)>> {
        let resolved = self.0.resolve.as_ref().context("nothing is resolved")?;
        let library = &self.library()?.id;
        let node = resolved.nodes.iter().find(|node| node.id == *library);
        let node = node.context("the library is not resolved")?;
        let needed = node.deps.iter().filter(|dep| is_needed_to_build(dep));
        Ok(needed.map(|dep| (dep.name.as_str(), &dep.pkg)).collect())
    }

    pub(crate) fn library(&self) -> Result<&Package> {
        self.package(LIBRARY)
    }

    fn package(&self, name: &str) -> Result<&Package> {
        let found = self.packages().iter().find(|package| package.name == name);
        found.with_context(|| format!("no package {name} in the workspace"))
    }
}

/// Returns this machine's name as a target to compile for.
pub(crate) fn host(stage: &Stage) -> Result<String> {
    let rustc = stage.output(setup::program("rustc").arg("-vV"))?;
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

/// Returns the binary of this name, if this line of `cargo build --message-format=json` contains its path.
pub(crate) fn executable(line: &str, name: &str) -> Option<PathBuf> {
    let Ok(Message::CompilerArtifact(artifact)) = serde_json::from_str(line) else {
        return None;
    };
    // A library's target has the library's name in Rust.
    let rust = |name: &str| name.replace('-', "_");
    let executable = artifact.executable?.into_std_path_buf();
    (rust(&artifact.target.name) == rust(name)).then_some(executable)
}

/// Returns true if the dependency is needed for more than tests.
fn is_needed_to_build(dependency: &NodeDep) -> bool {
    let mut kinds = dependency.dep_kinds.iter();
    kinds.any(|dep| matches!(dep.kind, DependencyKind::Normal | DependencyKind::Build))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Metadata, executable};
    use cargo_metadata::Package;
    use cargo_metadata::semver::Version;
    use serde_json::{Value, json};
    use std::path::PathBuf;

    /// Returns cargo's description of a package, changed by `differs`.
    pub(crate) fn package(differs: Value) -> Package {
        let package = json!({
            "name": "some", "version": "1.2.3", "id": "some", "manifest_path": "/Cargo.toml",
            "license": "MIT/Apache-2.0", "dependencies": [], "targets": [], "features": {},
            "source": "registry+https://github.com/rust-lang/crates.io-index",
        });
        serde_json::from_value(with(package, differs)).unwrap()
    }

    /// Returns cargo's description of a dependency.
    pub(crate) fn dependency(name: &str, req: &str, kind: Option<&str>, optional: bool) -> Value {
        json!({
            "name": name, "req": req, "kind": kind, "optional": optional,
            "uses_default_features": true, "features": [],
        })
    }

    fn with(mut value: Value, differs: Value) -> Value {
        let Value::Object(differs) = differs else {
            panic!("{differs} has no names");
        };
        value.as_object_mut().unwrap().extend(differs);
        value
    }

    fn target(kind: &str, name: &str) -> Value {
        json!({ "kind": [kind], "name": name, "src_path": "/main.rs" })
    }

    fn node(id: &str, deps: &[(&str, &[Option<&str>])]) -> Value {
        let deps = deps.iter().map(|(id, kinds)| {
            let kinds = kinds.iter().map(|kind| json!({ "kind": kind }));
            json!({ "name": id, "pkg": id, "dep_kinds": kinds.collect::<Vec<_>>() })
        });
        json!({ "id": id, "dependencies": [], "deps": deps.collect::<Vec<_>>() })
    }

    fn sample() -> Metadata {
        let named =
            |name: &str, rest: Value| package(with(json!({"name": name, "id": name}), rest));
        let packages = [
            named(
                "eldest",
                json!({
                    "version": "0.1.0", "rust_version": "1.88",
                    "features": {"default": [], "tls": ["ring"], "ring": ["a/ring"], "testing": []},
                    "dependencies": [
                        dependency("a", "^1.2", None, false), dependency("a", "^1.2", Some("dev"), false),
                        dependency("b", "^2", None, true), dependency("t", "^3", Some("dev"), false),
                        dependency("p", "^1", Some("dev"), false),
                    ],
                    "targets": [target("lib", "eldest"), target("test", "smoke")],
                }),
            ),
            named("eldest-http", json!({"targets": [target("test", "http")]})),
            named(
                "eldest-node",
                json!({"targets": [
                    target("lib", "eldest_node"), target("bin", "eldest-node"), target("test", "node"),
                ]}),
            ),
            named(
                "a",
                json!({"rust_version": "1.63.0", "dependencies": [dependency("p", "^1", None, false)]}),
            ),
            named("b", json!({"version": "2.0.0", "rust_version": null})),
            named("t", json!({"version": "3.0.0", "rust_version": "1.99"})),
        ];
        let nodes = [
            node(
                "eldest",
                &[("a", &[Some("dev"), None]), ("t", &[Some("dev")])],
            ),
            node("a", &[("b", &[Some("build")])]),
            node("b", &[("a", &[None])]),
            node("t", &[]),
        ];
        let metadata = json!({
            "packages": packages, "resolve": {"nodes": nodes}, "version": 1,
            "workspace_members": [], "workspace_root": "/", "target_directory": "/target",
        });
        Metadata(serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn dependencies_of_tests_are_not_needed_to_build() {
        let sample = sample();
        let needed = sample.needed().unwrap();
        let names: Vec<_> = needed.keys().map(String::as_str).collect();
        assert_eq!(names, ["a 1.2.3", "b 2.0.0", "eldest 0.1.0"]);
        assert_eq!(needed["a 1.2.3"], Some(&Version::new(1, 63, 0)));
        assert_eq!(needed["b 2.0.0"], None);
    }

    #[test]
    fn the_library_is_described() {
        let sample = sample();
        assert_eq!(sample.features().unwrap(), ["ring", "testing"]);
        assert_eq!(sample.requirement("a").unwrap(), "^1.2");
        assert!(sample.requirement("c").is_err());
        assert_eq!(*sample.rust_version().unwrap(), Version::new(1, 88, 0));
    }

    #[test]
    fn dependencies_of_features_and_tests_are_not_for_users() {
        let sample = sample();
        let others: Vec<_> = sample.only_for_others().unwrap().into_iter().collect();
        assert_eq!(others, ["b", "t"]);
    }

    #[test]
    fn only_the_artifact_of_the_demo_names_the_binary() {
        let line = |name: &str, path: Value| {
            let profile = json!({
                "opt_level": "0", "debuginfo": 0, "debug_assertions": true, "overflow_checks": true, "test": false,
            });
            let artifact = json!({
                "reason": "compiler-artifact", "package_id": "some", "target": target("bin", name),
                "profile": profile, "features": [], "filenames": [], "executable": path, "fresh": true,
            });
            artifact.to_string()
        };
        let demo = |line: &str| executable(line, "eldest-demo");
        let path = "/t/debug/eldest-demo";
        assert_eq!(
            demo(&line("eldest-demo", json!(path))),
            Some(PathBuf::from(path))
        );
        assert_eq!(demo(&line("build-script-build", json!("/t/b"))), None);
        assert_eq!(demo(&line("eldest-demo", Value::Null)), None);
        assert_eq!(demo("not JSON"), None);
    }
}
