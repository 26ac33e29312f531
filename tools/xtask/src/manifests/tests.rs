//! Tests that the files beside the code agree with the code.

use crate::docker;
use crate::images::bases::{DEBIAN, RUST};
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

/// A Deployment whose pods are all to be replaced, by the rules of its controller.
struct Rollout {
    replicas: usize,
    max_unavailable: usize,
    max_surge: usize,
    /// The path of the readiness probe.
    probe: &'static str,
}

impl Rollout {
    /// Returns true if the probe calls a pod ready: either each pod in the queue, or only the eldest, which leads.
    fn is_ready(&self, place: usize) -> bool {
        self.probe == "/ready" || place == 0
    }

    /// Counts the ready pods of a version.
    fn ready(&self, queue: &[bool], of: bool) -> usize {
        let pods = queue.iter().enumerate();
        pods.filter(|(place, new)| **new == of && self.is_ready(*place))
            .count()
    }

    /// Emulates the controller until nothing changes. Returns true if only new pods are left, and all of them.
    fn finishes(&self) -> bool {
        let least = self.replicas - self.max_unavailable;
        // The pods in the order in which they joined; true for the new version.
        let mut queue = vec![false; self.replicas];
        loop {
            let before = queue.clone();
            let new = queue.iter().filter(|new| **new).count();
            let room = (self.replicas + self.max_surge).saturating_sub(queue.len());
            queue.resize(queue.len() + room.min(self.replicas - new), true);
            let new = queue.iter().filter(|new| **new).count();
            let unready = new - self.ready(&queue, true);
            let mut surplus = queue.len().saturating_sub(least + unready);
            // Old pods that are not ready are removed first, because they serve no requests.
            for place in (0..queue.len()).rev() {
                if surplus > 0 && !queue[place] && !self.is_ready(place) {
                    queue.remove(place);
                    surplus -= 1;
                }
            }
            let available = self.ready(&queue, true) + self.ready(&queue, false);
            for _ in least..available {
                if let Some(place) = queue.iter().rposition(|new| !new) {
                    queue.remove(place);
                }
            }
            if queue == before {
                return queue == vec![true; self.replicas];
            }
        }
    }
}

#[test]
fn rollout_of_the_manifests_finishes_but_not_with_leader_probes() {
    for manifest in [MANIFEST, SIDECAR].map(read) {
        let count = |key| usize::try_from(number(&manifest, key)).unwrap();
        let (replicas, max_unavailable) = (count("replicas"), count("maxUnavailable"));
        let (_, probe) = manifest.split_once("readinessProbe:").unwrap();
        assert!(probe.trim().starts_with("httpGet: { path: /ready,"));
        let rollout = |probe| Rollout {
            replicas,
            max_unavailable,
            max_surge: count("maxSurge"),
            probe,
        };
        assert!(rollout("/ready").finishes());
        assert!(!rollout("/leader").finishes());
    }
    // docs/kubernetes.md makes this statement about all of them.
    for replicas in 2..6 {
        for (max_unavailable, max_surge) in
            [(0, 1), (1, 0), (1, 1), (replicas - 1, 0), (replicas, 0)]
        {
            let rollout = |probe| Rollout {
                replicas,
                max_unavailable,
                max_surge,
                probe,
            };
            assert!(rollout("/ready").finishes());
            let finishes = rollout("/leader").finishes();
            assert_eq!(
                finishes,
                max_unavailable == replicas,
                "{replicas} {max_unavailable} {max_surge}"
            );
        }
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
fn guarded_nodes_of_compose_find_its_agent_and_start_only_on_request() {
    let (compose, known) = (read("docker-compose.yml"), read("tools/node/src/config.rs"));
    let (_, agent) = compose.split_once("\nx-guarded:").unwrap();
    assert_eq!(value(agent, "GUARD"), "/run/eldest/agent.sock");
    assert!(agent.contains("--socket, /run/eldest/agent.sock,"));
    let shared = r#"volumes: ["agent:/run/eldest"]"#;
    let asked = "profiles: [agent]";
    for part in [shared, asked] {
        assert_eq!(
            agent.matches(part).count(),
            2,
            "{part}: the nodes and the agent"
        );
    }
    let (_, variables) = agent.split_once("&guarded-environment").unwrap();
    let (variables, _) = variables.split_once("\n\n").unwrap();
    assert!(variables.contains("ETCD_ENDPOINTS: "));
    let names = variables
        .lines()
        .filter_map(|line| line.trim().split_once(": "));
    for (name, _) in names.chain([("NODE_NAME", "")]) {
        let read = format!("variable(\"{name}\")");
        assert!(known.contains(&read), "the node does not read {name}");
    }
    for number in [1, 2] {
        assert!(
            agent.contains(&format!("NODE_NAME: guarded{number} }}")),
            "{number}"
        );
    }
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
    assert_eq!(value(&sidecar, "image"), crate::images::command::NAME);
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
fn load_balancer_reaches_nodes_and_workers_at_their_ports() {
    let (compose, front) = (read("docker-compose.yml"), read("deploy/haproxy.cfg"));
    let (_, port) = value(&compose, "ELDEST_SERVE").split_once(':').unwrap();
    let worker = read("tools/node/src/bin/eldest-worker.rs");
    assert!(worker.contains("\"0.0.0.0:8080\""));
    for number in 1..=3 {
        let server = format!("server node{number} node{number}:8080 check port {port}");
        assert!(front.contains(&server), "{server}");
        let address = format!("\"address=http://node{number}:8080\"");
        assert!(compose.contains(&address), "{address}");
    }
    let mount = "./deploy/haproxy.cfg:/usr/local/etc/haproxy/haproxy.cfg:ro";
    assert!(compose.contains(mount));
    let (_, of_front) = compose.split_once("\n  front:").unwrap();
    assert_eq!(value(of_front, "image"), crate::images::haproxy::NAME);
}

#[test]
fn the_image_is_the_one_that_is_built_here() {
    let (kubernetes, dockerfile) = (read(MANIFEST), read("Dockerfile"));
    let image = format!("eldest-node:{}", locked("eldest-node"));
    assert_eq!(docker::COMPOSE_IMAGE, image);
    assert_eq!(value(&kubernetes, "image"), image);
    let compose = read("docker-compose.yml");
    let (_, node) = compose.split_once("x-node:").unwrap();
    assert_eq!(value(node, "image"), image);
    let user = value(&kubernetes, "runAsUser");
    let nobody = format!("USER {user}:{user}");
    let of_both = dockerfile.matches(&nobody).count();
    assert_eq!(of_both, 2, "nobody in particular runs either");
    for program in crate::images::node::PROGRAMS {
        let built = format!("/out/{program} ");
        assert!(dockerfile.contains(&built), "{program}");
    }
    let command = format!("eldest:{}", locked("eldest"));
    assert_eq!(crate::images::command::NAME, command);
}

#[test]
fn compose_and_dockerfile_start_from_images_that_can_be_made_here() {
    let compose = read("docker-compose.yml");
    let etcd = format!("${{ETCD_VERSION:-v{}}}", locked("etcd-bin-vendored"));
    assert!(
        compose.contains(&etcd),
        "docker-compose.yml has another etcd than {etcd}"
    );
    let example = read("examples/failover/tests/failover.rs");
    let tag = format!(
        "(\"quay.io/coreos/etcd\", \"v{}\")",
        locked("etcd-bin-vendored")
    );
    assert!(
        example.contains(&tag),
        "the example has another etcd than {tag}"
    );
    let dockerfile = read("Dockerfile");
    let bases = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("FROM "));
    let bases: Vec<_> = bases.filter_map(|line| line.split_once(" AS ")).collect();
    let stages = [(RUST, "builder"), (DEBIAN, "node"), ("scratch", "eldest")];
    assert_eq!(bases, stages);
    assert!(compose.contains("target: node"));
}
