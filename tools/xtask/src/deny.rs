//! Checks the licences, bans and sources in deny.toml without cargo-deny, which takes minutes to build.
//!
//! Only cargo-deny reads the rest of the file.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use cargo_metadata::Package;
use cargo_metadata::semver::VersionReq;
use spdx::{Expression, Licensee, ParseMode};
use toml::{Table, Value};

use crate::install::Tool;
use crate::metadata::Metadata;
use crate::stage::Stage;
use crate::workspaces::Workspace;
use crate::{process, setup};

const TOOL: Tool = Tool {
    name: "cargo-deny",
    version: None,
    ask: &["--version"],
    arguments: &[],
};

/// What deny.toml says, as far as the stage reads it.
struct Rules {
    licences: Vec<Licensee>,
    /// Name and reason.
    banned: Vec<(String, String)>,
    registries: Vec<String>,
}

/// The stage `deny`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let rules = Rules::read(&std::fs::read_to_string(setup::root().join("deny.toml"))?)?;
    for workspace in Workspace::ALL {
        let metadata = Metadata::with_dependencies(stage, workspace)?;
        let packages = metadata.packages();
        // The library alone has more than this.
        ensure!(packages.len() > 50, "only {} packages", packages.len());
        let broken = rules.broken(packages);
        if broken.is_empty() {
            let what = "packages: licences, bans and sources as deny.toml wants them";
            stage.pass(&format!("{workspace:?}: {} {what}", packages.len()));
        }
        for why in broken {
            stage.fail(why);
        }
    }
    advisories(stage)
}

fn advisories(stage: &mut Stage) -> Result<()> {
    let Some(tool) = TOOL.find() else {
        stage.skip(
            "advisories are not checked: `cargo xtask deny` installs cargo-deny and asks them",
        );
        return Ok(());
    };
    let fetched = stage.output(&mut deny(&tool, Workspace::Product, &["fetch", "db"])?);
    if let Err(error) = fetched {
        stage.skip(format!(
            "advisories are not checked: no database: {error:#}"
        ));
        return Ok(());
    }
    let mut affected = false;
    for workspace in Workspace::ALL {
        affected |= !stage.step(&mut deny(&tool, workspace, &["check", "advisories"])?)?;
    }
    if !affected {
        stage.pass("no advisory is about what we depend on");
    }
    Ok(())
}

/// The command `deny`: cargo-deny with these arguments, or with all its checks.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let tool = TOOL.get()?;
    let args: Vec<&str> = match args {
        [] => vec!["check"],
        args => args.iter().map(String::as_str).collect(),
    };
    for workspace in Workspace::ALL {
        let status = deny(&tool, workspace, &args)?.status();
        let status = status.context("starting cargo-deny")?;
        if !status.success() {
            return Ok(process::exit_code(status));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// cargo-deny, in that workspace. It looks for deny.toml in the folders above, too.
fn deny(tool: &Path, workspace: Workspace, args: &[&str]) -> Result<Command> {
    let mut command = setup::program(tool.to_str().context("the path of cargo-deny")?);
    command.args(args).current_dir(workspace.folder());
    Ok(command)
}

impl Rules {
    fn read(text: &str) -> Result<Self> {
        let file: Table = text.parse().context("reading deny.toml")?;
        let list = |section: &str, name: &str| -> Result<&Vec<Value>> {
            let value = file.get(section).and_then(|section| section.get(name));
            let list = value.and_then(Value::as_array);
            list.with_context(|| format!("deny.toml has no list `{name}` under [{section}]"))
        };
        let text = |value: &Value| value.as_str().map(str::to_owned).context("a text");
        let licences = list("licenses", "allow")?.iter().map(|value| {
            let name = text(value)?;
            Licensee::parse(&name).with_context(|| format!("licence {name}"))
        });
        let banned = list("bans", "deny")?.iter().map(|value| {
            let part = |name: &str| value.get(name).context("a ban has no such part");
            Ok((text(part("crate")?)?, text(part("reason")?)?))
        });
        Ok(Self {
            licences: licences.collect::<Result<_>>()?,
            banned: banned.collect::<Result<_>>()?,
            registries: { list("sources", "allow-registry")?.iter() }
                .map(text)
                .collect::<Result<_>>()?,
        })
    }

    /// What breaks a rule, and which.
    fn broken(&self, packages: &[Package]) -> Vec<String> {
        let mut broken = Vec::new();
        for package in packages {
            let (name, version) = (&package.name, &package.version);
            let mut say = |why: String| broken.push(format!("{name} {version}: {why}"));
            match package.license.as_deref() {
                None => say("it declares no licence".to_owned()),
                Some(licence) if !self.allows(licence) => {
                    say(format!(
                        "its licence {licence} is not among those of deny.toml"
                    ));
                }
                Some(_) => {}
            }
            if let Some((_, reason)) = self.banned.iter().find(|(banned, _)| name == banned) {
                say(format!("banned: {reason}"));
            }
            match &package.source {
                Some(source) if !self.knows(&source.repr) => {
                    say(format!("it comes from {source}"));
                }
                Some(_) => {}
                // Ours: what it depends on has a version.
                None => {
                    let dependencies = package.dependencies.iter();
                    let wild = dependencies
                        .filter(|found| found.req == VersionReq::STAR && found.path.is_none());
                    let names: Vec<&str> = wild.map(|found| found.name.as_str()).collect();
                    if !names.is_empty() {
                        say(format!("it takes any version of {}", names.join(", ")));
                    }
                }
            }
        }
        broken
    }

    fn allows(&self, licence: &str) -> bool {
        // Older packages write `MIT/Apache-2.0`.
        let expression = Expression::parse_mode(licence, ParseMode::LAX);
        expression.is_ok_and(|expression| {
            expression.evaluate(|wanted| self.licences.iter().any(|ours| ours.satisfies(wanted)))
        })
    }

    fn knows(&self, source: &str) -> bool {
        let registry = source.strip_prefix("registry+");
        registry.is_some_and(|registry| self.registries.iter().any(|known| known == registry))
    }
}

#[cfg(test)]
mod tests {
    use super::Rules;
    use crate::metadata::tests::{dependency, package};
    use crate::setup;
    use serde_json::{Value, json};

    fn rules() -> Rules {
        let text = std::fs::read_to_string(setup::root().join("deny.toml")).unwrap();
        Rules::read(&text).unwrap()
    }

    fn broken(differs: Value) -> String {
        let broken = rules().broken(&[package(differs)]);
        assert_eq!(broken.len(), 1, "{broken:?}");
        broken.concat()
    }

    #[test]
    fn what_keeps_to_the_rules_is_not_told() {
        let good = [
            json!({}),
            json!({"license": "GPL-3.0-only OR MIT"}),
            json!({"source": null}),
        ];
        assert_eq!(rules().broken(&good.map(package)), [""; 0]);
    }

    #[test]
    fn a_licence_that_is_not_allowed_or_not_declared_is_told() {
        for licence in [
            Value::Null,
            json!("GPL-3.0-only"),
            json!("MIT AND GPL-2.0-only"),
            json!("nonsense"),
        ] {
            assert!(broken(json!({ "license": licence })).contains("licence"));
        }
    }

    #[test]
    fn a_banned_package_and_one_from_elsewhere_are_told() {
        assert!(broken(json!({"name": "openssl"})).contains("TLS is rustls"));
        for source in [
            "git+https://example.org/some?rev=1#1",
            "registry+https://example.org/index",
        ] {
            assert!(broken(json!({ "source": source })).contains("comes from"));
        }
    }

    #[test]
    fn a_member_of_ours_that_takes_any_version_is_told() {
        let wild = [dependency("serde", "*", None, false)];
        let wild = json!({"source": null, "dependencies": wild});
        assert!(broken(wild).contains("any version of serde"));
    }
}
