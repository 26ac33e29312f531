//! Tests that the files beside the code agree with the code.

use crate::setup;
use std::fs;

const MANIFEST: &str = "deploy/kustomize/library/manifests.yaml";
const SIDECAR: &str = "deploy/kustomize/sidecar/manifests.yaml";

fn read(path: &str) -> String {
    fs::read_to_string(setup::root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the first value of a key in one of our YAML files.
fn value<'a>(yaml: &'a str, key: &str) -> &'a str {
    let mut lines = yaml
        .lines()
        .map(|line| line.trim().trim_start_matches("- "));
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value
        .unwrap_or_else(|| panic!("no {key}"))
        .trim()
        .trim_matches('"')
}

/// Reads a number, which may have the unit of seconds.
fn number(yaml: &str, key: &str) -> u64 {
    value(yaml, key).trim_end_matches('s').parse().unwrap()
}

/// Returns the version of a package in the workspace's lock file.
fn locked(package: &str) -> String {
    let lock = read("Cargo.lock");
    let (_, after) = lock.split_once(&format!("name = \"{package}\"\n")).unwrap();
    let version = after.lines().next().unwrap();
    let version = version.strip_prefix("version = ").unwrap();
    version.trim_matches('"').to_owned()
}

#[test]
fn a_node_has_two_ttls_and_five_seconds_to_leave() {
    let kubernetes = read(MANIFEST);
    let grace = number(&kubernetes, "terminationGracePeriodSeconds");
    assert_eq!(grace, 2 * number(&kubernetes, "TTL_SECONDS") + 5);
    let sidecar = read(SIDECAR);
    let grace = number(&sidecar, "terminationGracePeriodSeconds");
    assert_eq!(grace, 2 * number(&sidecar, "ELDEST_TTL") + 5);
    let compose = read("docker-compose.yml");
    let (_, node) = compose.split_once("x-node:").unwrap();
    let ttl = number(node, "ELDEST_TTL");
    assert_eq!(number(node, "stop_grace_period"), 2 * ttl + 5);
}

#[test]
fn the_node_knows_each_variable_that_it_is_given() {
    let known = read("tools/node/src/config.rs");
    let kubernetes = read(MANIFEST);
    let (_, data) = kubernetes.split_once("\ndata:\n").unwrap();
    let (data, rest) = data.split_once("\n---\n").unwrap();
    let data = data.lines().filter_map(|line| line.trim().split_once(':'));
    let own = rest
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- name: "));
    let own = own.filter(|name| name.starts_with(char::is_uppercase));
    let names: Vec<&str> = data.map(|(name, _)| name).chain(own).collect();
    for name in ["ETCD_ENDPOINTS", "NODE_NAME", "ADVERTISE"] {
        assert!(names.contains(&name), "{name} is not given: {names:?}");
    }
    // Kubernetes itself puts the first into ADVERTISE; the library for logging reads the second.
    let others = ["POD_IP", "RUST_LOG"];
    for name in names.iter().filter(|name| !others.contains(name)) {
        let read = format!("variable(\"{name}\")");
        assert!(known.contains(&read), "the node does not read {name}");
    }
}

/// Checks that the source of an HTTP interface has the path of each probe of a manifest.
fn probes_have_routes(kubernetes: &str, web: &str) {
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let (_, after) = kubernetes.split_once(probe).unwrap();
        let (_, path) = after.split_once("path: ").unwrap();
        let (path, _) = path.split_once(',').unwrap();
        assert!(
            web.contains(&format!(".route(\"{path}\"")),
            "{probe}: {path}"
        );
        // Otherwise an outage of etcd would kill every node.
        assert_eq!(path == "/ready", probe == "readinessProbe", "{probe}");
    }
}

#[test]
fn systemd_units_wait_for_the_default_ttl_and_name_known_variables() {
    let options = read("crates/eldest-cli/src/connection.rs");
    let (_, default) = options.split_once("[default: 10s;").unwrap();
    let (_, field) = default
        .split_once("ttl: ")
        .expect("it is the default of --ttl");
    assert!(field.starts_with("Option<Duration>"), "{field}");
    for unit in ["eldest-serve@", "eldest-run@"] {
        let unit = read(&format!("deploy/systemd/{unit}.service"));
        assert!(unit.contains(&format!("TimeoutStopSec={}s\n", 2 * 10 + 5)));
    }
    let (settings, variables) = (read("deploy/systemd/eldest.env"), read("docs/cli.md"));
    let names = settings
        .lines()
        .filter_map(|line| line.trim_start_matches('#').split_once('='));
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    assert!(names.contains(&"ELDEST_ENDPOINTS"), "{names:?}");
    for name in names {
        let row = format!("| `{name}` |");
        assert!(variables.contains(&row), "the command does not read {name}");
    }
}

#[test]
fn the_units_of_nodes_may_use_the_agent_and_do_without_it() {
    let agent = read("deploy/systemd/eldest-agent.service");
    assert_eq!(unit_line(&agent, "Group"), "eldest");
    assert!(agent.contains("--socket /run/eldest/agent.sock --socket-mode 0660"));
    assert!(read("deploy/systemd/eldest.sysusers").contains("\nu eldest "));
    for unit in ["eldest-serve@", "eldest-run@"] {
        let unit = read(&format!("deploy/systemd/{unit}.service"));
        assert_eq!(unit_line(&unit, "SupplementaryGroups"), "eldest");
        assert!(unit_line(&unit, "After").ends_with(" eldest-agent.service"));
        assert_eq!(unit_line(&unit, "Wants"), "network-online.target");
        assert!(!unit.contains("Requires="));
    }
    // The group must exist before a unit that names it starts.
    let postinst = read("deploy/debian/postinst");
    let made = postinst.find("systemd-sysusers eldest.conf").unwrap();
    assert!(made < postinst.find("systemctl").unwrap());
}

fn unit_line<'a>(unit: &'a str, key: &str) -> &'a str {
    let mut lines = unit.lines().filter_map(|line| line.split_once('='));
    let line = lines.find(|(name, _)| *name == key);
    line.unwrap_or_else(|| panic!("no {key}")).1
}

#[test]
fn the_sidecar_has_variables_probes_and_an_image_of_the_command() {
    let (sidecar, variables) = (read(SIDECAR), read("docs/cli.md"));
    let words = sidecar.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
    let given: Vec<&str> = words.filter(|word| word.starts_with("ELDEST_")).collect();
    for name in ["ELDEST_ENDPOINTS", "ELDEST_ID", "ELDEST_TTL"] {
        assert!(given.contains(&name), "{name} is not given: {given:?}");
    }
    for name in given.iter().filter(|name| **name != "ELDEST_RENEW") {
        let row = format!("| `{name}` |");
        assert!(variables.contains(&row), "the command does not read {name}");
    }
    probes_have_routes(&sidecar, &read("crates/eldest-http/src/lib.rs"));
    let port = "containerPort: 8470";
    assert!(sidecar.contains(port) && sidecar.contains("--listen=0.0.0.0:8470"));
}

#[test]
fn probes_use_paths_and_ports_of_the_node() {
    let (kubernetes, web) = (read(MANIFEST), read("tools/node/src/web.rs"));
    probes_have_routes(&kubernetes, &web);
    let listens = read("tools/node/src/config.rs").contains("\"0.0.0.0:8080\"");
    assert!(listens && kubernetes.contains("containerPort: 8080"));
    assert!(kubernetes.contains("value: http://$(POD_IP):8080"));
    assert!(read("Dockerfile").contains("EXPOSE 8470 8080"));
}

#[test]
fn the_manifests_name_the_images_of_this_version() {
    let node = format!("eldest-node:{}", locked("eldest-node"));
    assert_eq!(value(&read(MANIFEST), "image"), node);
    let compose = read("docker-compose.yml");
    let (_, of_nodes) = compose.split_once("x-node:").unwrap();
    assert_eq!(value(of_nodes, "image"), node);
    let command = format!("eldest:{}", locked("eldest"));
    assert_eq!(crate::images::command::NAME, command);
    assert_eq!(value(&read(SIDECAR), "image"), command);
    let manifest = read(MANIFEST);
    let user = value(&manifest, "runAsUser");
    let nobody = format!("USER {user}:{user}");
    assert_eq!(read("Dockerfile").matches(&nobody).count(), 2);
}
