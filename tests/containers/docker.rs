//! Tests the container tools on real containers, started in different ways.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use eldest::BoxError;
use eldest_testing::docker::{Container, Network, OWNER_LABEL, owner_label, sweep};
use eldest_testing::eventually;
use eldest_testing::history::{Recorder, What};
use etcd_client::Client;
use testcontainers::bollard::Docker;
use testcontainers::bollard::models::{
    EndpointIpamConfig, EndpointSettings, Ipam, IpamConfig, NetworkConnectRequest,
    NetworkCreateRequest, VolumeCreateRequest,
};
use testcontainers::bollard::query_parameters::RemoveVolumeOptions;
use testcontainers::core::{ExecCommand, IntoContainerPort};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt};

use crate::images::{ETCD, etcd_tag};

type Result<T = ()> = std::result::Result<T, BoxError>;

const SOON: Duration = Duration::from_secs(20);

/// Returns a name that no other test and no other run has.
fn name(of: &str) -> String {
    format!("eldest-docker-{of}-{}", std::process::id())
}

/// Makes the request for an etcd container with our labels.
fn etcd(name: &str) -> ContainerRequest<GenericImage> {
    let (key, value) = owner_label();
    GenericImage::new(ETCD, &etcd_tag())
        .with_exposed_port(2379.tcp())
        .with_container_name(name)
        .with_label(key, value)
        .with_env_var("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:2379")
        .with_env_var("ETCD_ADVERTISE_CLIENT_URLS", "http://0.0.0.0:2379")
}

/// Checks that the etcd in the container answers through its published port.
async fn answers(container: &Container) -> Option<()> {
    let ask = async {
        let endpoint = format!("http://{}", container.address(2379).await.ok()?);
        let mut client = Client::connect([endpoint], None).await.ok()?;
        client.status().await.ok()
    };
    let answer = tokio::time::timeout(Duration::from_millis(500), ask).await;
    answer.ok().flatten().map(|_| ())
}

/// Checks that the etcd with that name answers to a program in this container.
async fn reaches(from: &ContainerAsync<GenericImage>, host: &str) -> Option<()> {
    let endpoint = format!("--endpoints=http://{host}:2379");
    // More time than a program needs to start on a busy machine.
    let command = [
        "etcdctl",
        &endpoint,
        "--command-timeout=3s",
        "--dial-timeout=3s",
    ];
    let command = command.into_iter().chain(["endpoint", "health"]);
    let mut result = from.exec(ExecCommand::new(command)).await.ok()?;
    result.stdout_to_vec().await.ok()?; // the output ends when the program does
    (result.exit_code().await.ok()? == Some(0)).then_some(())
}

#[tokio::test]
async fn a_frozen_container_stops_and_a_killed_one_starts_again() -> Result {
    let name = name("stops");
    let started = etcd(&name).start().await?;
    let container = Container::find(&name).await?;
    assert_eq!((container.id(), container.name()), (started.id(), &*name));
    eventually(SOON, "it answers", async || answers(&container).await).await?;

    container.freeze().await?;
    assert_eq!(answers(&container).await, None);
    let error = container.freeze().await.expect_err("frozen already");
    assert!(error.to_string().contains(&name), "{error}");
    container.thaw().await?;
    eventually(SOON, "it answers again", async || answers(&container).await).await?;

    container.kill().await?;
    assert_eq!(started.exit_code().await?, Some(137));
    container.start().await?;
    let back = "it is back after it was killed";
    eventually(SOON, back, async || answers(&container).await).await?;

    container.stop(Duration::from_secs(10)).await?;
    assert!(!started.is_running().await?);
    let error = container.kill().await.expect_err("nothing to kill");
    assert!(
        error.to_string().starts_with("cannot kill container"),
        "{error}"
    );
    Ok(())
}

#[tokio::test]
async fn a_frozen_container_can_be_killed_and_can_be_asked_to_end() -> Result {
    let name = name("frozen");
    let started = etcd(&name).start().await?;
    let recorder = Recorder::boottime();
    let container = Container::find(&name).await?.recorded(&recorder, "n1");
    eventually(SOON, "it answers", async || answers(&container).await).await?;
    container.freeze().await?;
    container.kill().await?;
    assert_eq!(started.exit_code().await?, Some(137), "killed while frozen");

    container.start().await?;
    let back = "it is back after it was killed while frozen";
    eventually(SOON, back, async || answers(&container).await).await?;
    container.freeze().await?;
    container.stop(SOON).await?;
    let code = started.exit_code().await?;
    assert_eq!(code, Some(0), "it heard the signal, and ended by itself");

    let history = recorder.history()?;
    let seen: Vec<&What> = history.events().iter().map(|event| &event.what).collect();
    let (paused, resumed, killed) = (&What::Paused, &What::Resumed, &What::Killed);
    assert_eq!(
        seen,
        [paused, killed, paused, resumed, resumed, killed],
        "it was dead when it had been killed, and went on before it ended"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_comes_back_under_the_name_and_address_it_had() -> Result {
    let docker = Docker::connect_with_defaults()?.negotiate_version().await?;
    let front = Network::create(name("front")).await?;
    let back = Subnet::create(name("back")).await?;
    let other = etcd(&name("other"))
        .with_network(front.name())
        .start()
        .await?;
    let started = etcd(&name("cut"))
        .with_network(front.name())
        .start()
        .await?;
    // As docker-compose does: with an alias that is not the container's name, and an address of its own.
    for (network, ip) in [(&back.name, None), (&back.name, Some(&back.address))] {
        let container = if ip.is_some() {
            started.id()
        } else {
            other.id()
        };
        let request = NetworkConnectRequest {
            container: container.to_owned(),
            endpoint_config: Some(EndpointSettings {
                aliases: ip.map(|_| vec!["database".to_owned()]),
                ipam_config: ip.map(|ip| EndpointIpamConfig {
                    ipv4_address: Some(ip.clone()),
                    ..EndpointIpamConfig::default()
                }),
                ..EndpointSettings::default()
            }),
        };
        docker.connect_network(network, request).await?;
    }
    let container = Container::find(started.id()).await?;
    let there = async || reaches(&other, "database").await;
    let at_address = async || reaches(&other, &back.address).await;
    let in_front = async || reaches(&other, &name("cut")).await;
    eventually(SOON, "at first, it is found by its alias", there).await?;
    eventually(SOON, "at first, it is at its address", at_address).await?;

    container.cut(&back.name).await?;
    assert_eq!(container.networks().await?, [front.name()]);
    assert_eq!(there().await, None);
    let still = "cut from one network, it is found in the other";
    eventually(SOON, still, in_front).await?;
    container.heal().await?;
    eventually(SOON, "after the cut, it is found by its alias", there).await?;
    eventually(SOON, "after the cut, it is at its address", at_address).await?;

    container.cut_all().await?;
    assert!(container.networks().await?.is_empty());
    assert_eq!(in_front().await, None);
    let answer = answers(&container).await;
    assert_eq!(answer, None, "its published port is gone");
    container.kill().await?;
    container.start().await?;
    assert!(container.networks().await?.is_empty(), "it stays cut off");
    container.heal().await?;
    let port = "after a start, it answers at its port";
    eventually(SOON, port, async || answers(&container).await).await?;
    eventually(SOON, "after a start, it is found by its alias", there).await?;

    let error = container.cut("nowhere").await.expect_err("no such network");
    assert!(error.to_string().contains(front.name()), "{error}");
    drop((started, other));
    Ok(())
}

/// A network whose addresses the test chooses.
struct Subnet {
    docker: Docker,
    name: String,
    address: String,
}

impl Subnet {
    async fn create(name: String) -> Result<Self> {
        let docker = Docker::connect_with_defaults()?.negotiate_version().await?;
        let (key, value) = owner_label();
        // Other networks may have the first ranges.
        for third in 0..=255 {
            let request = NetworkCreateRequest {
                name: name.clone(),
                ipam: Some(Ipam {
                    config: Some(vec![IpamConfig {
                        subnet: Some(format!("10.213.{third}.0/24")),
                        ..IpamConfig::default()
                    }]),
                    ..Ipam::default()
                }),
                labels: Some([(key.to_owned(), value.clone())].into()),
                ..NetworkCreateRequest::default()
            };
            match docker.create_network(request).await {
                Ok(_) => {
                    let address = format!("10.213.{third}.77");
                    return Ok(Self {
                        docker,
                        name,
                        address,
                    });
                }
                Err(error) if error.to_string().contains("overlaps") => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err("no free addresses".into())
    }
}

impl Drop for Subnet {
    fn drop(&mut self) {
        let (docker, name) = (self.docker.clone(), std::mem::take(&mut self.name));
        let removal = async move { docker.remove_network(&name).await };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(removal))
            .expect("nobody uses it");
    }
}

/// A process that owns containers. While it lives, no sweep of another test removes them half made.
struct Owner(Child);

impl Owner {
    fn start() -> Result<Self> {
        let process = Command::new("cat").stdin(Stdio::piped()).spawn()?;
        Ok(Self(process))
    }

    fn labels(&self) -> Result<HashMap<String, String>> {
        let pid = self.0.id();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        let since_boot = fields.and_then(|fields| fields.split(' ').nth(19));
        let since_boot = since_boot.ok_or("no start")?;
        Ok([(OWNER_LABEL.to_owned(), format!("{pid}-{since_boot}"))].into())
    }

    fn end(mut self) -> Result {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

/// Starts a container in a network with that name, both with these labels.
async fn in_a_network(
    docker: &Docker,
    name: &str,
    labels: HashMap<String, String>,
) -> Result<ContainerAsync<GenericImage>> {
    let network = NetworkCreateRequest {
        name: name.to_owned(),
        labels: Some(labels.clone()),
        ..NetworkCreateRequest::default()
    };
    docker.create_network(network).await?;
    let container = GenericImage::new(ETCD, &etcd_tag())
        .with_container_name(name)
        .with_network(name)
        .with_labels(labels);
    Ok(container.start().await?)
}

#[tokio::test]
async fn a_sweep_removes_only_containers_of_dead_owners() -> Result {
    let docker = Docker::connect_with_defaults()?.negotiate_version().await?;
    let (key, own) = owner_label();
    let owner = Owner::start()?;
    let own_label = HashMap::from([(key.to_owned(), own)]);
    let names = |of: &str| name(&format!("sweep-{of}"));
    let mut kept = Vec::new();
    for (of, labels) in [
        ("dead", owner.labels()?),
        ("own", own_label),
        ("nobody", HashMap::new()),
    ] {
        let volume = VolumeCreateRequest {
            name: Some(names(of)),
            labels: Some(labels.clone()),
            ..VolumeCreateRequest::default()
        };
        docker.create_volume(volume).await?;
        kept.push(in_a_network(&docker, &names(of), labels).await?);
    }

    owner.end()?;
    let swept = sweep().await?;
    let mut ours = swept.iter().filter(|what| what.contains("-sweep-"));
    let expected =
        ["container", "network", "volume"].map(|kind| format!("{kind} {}", names("dead")));
    let there = async |of: &str| {
        let name = names(of);
        [
            docker.inspect_container(&name, None).await.is_ok(),
            docker.inspect_network(&name, None).await.is_ok(),
            docker.inspect_volume(&name).await.is_ok(),
        ]
    };
    let left = [
        there("dead").await,
        there("own").await,
        there("nobody").await,
    ];
    // Clean up before the assertions.
    drop(kept);
    for of in ["own", "nobody"] {
        let _ = docker.remove_network(&names(of)).await;
        let _ = docker
            .remove_volume(&names(of), None::<RemoveVolumeOptions>)
            .await;
    }
    assert_eq!(left, [[false; 3], [true; 3], [true; 3]]);
    // Another sweep may have removed all or some of them first.
    assert!(ours.all(|name| expected.contains(name)), "{swept:?}");
    assert_eq!(key, OWNER_LABEL);
    Ok(())
}

#[tokio::test]
async fn a_network_goes_with_its_test() -> Result {
    let docker = Docker::connect_with_defaults()?.negotiate_version().await?;
    let name = name("network");
    let network = Network::create(&name).await?;
    let found = docker.inspect_network(&name, None).await?;
    let (key, value) = owner_label();
    assert_eq!(found.labels.unwrap_or_default().get(key), Some(&value));
    let error = Network::create(&name).await.expect_err("taken");
    assert!(error.to_string().contains(&name), "{error}");
    drop(network);
    assert!(docker.inspect_network(&name, None).await.is_err());
    Ok(())
}

#[tokio::test]
async fn missing_container_is_named() {
    let error = Container::find("eldest-no-such-container").await;
    let error = error.expect_err("nobody").to_string();
    assert!(error.contains("eldest-no-such-container"), "{error}");
}
