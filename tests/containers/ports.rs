//! Finds a free port of this machine for a container, so that the container keeps the port when it restarts.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use eldest_testing::docker::Container;
use testcontainers::bollard::Docker;
use testcontainers::bollard::query_parameters::RemoveContainerOptionsBuilder;
use testcontainers::core::IntoContainerPort;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt};

use crate::images::{ETCD, etcd_tag};
use crate::lab::Result;
use crate::member::owned;

/// A range below the one from which the kernel and the engine take ports: one of theirs could take ours while the
/// container is down.
const RANGE: std::ops::Range<u16> = 16_000..32_000;
/// How many ports are tried.
const TRIES: usize = 10;

/// Returns a port without a listener.
pub(crate) fn free() -> Result<u16> {
    for _ in 0..1_000 {
        let random = RandomState::new().hash_one(0) % u64::from(RANGE.end - RANGE.start);
        let port = RANGE.start + u16::try_from(random)?;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(format!("no free port from {RANGE:?}").into())
}

/// Starts the container with that name at one of these ports. Another program may take a port between our check and the
/// engine's; then another port is used.
pub(crate) async fn start(
    name: &str,
    mut next: impl FnMut() -> Result<u16>,
    request: impl Fn(u16) -> ContainerRequest<GenericImage>,
) -> Result<(u16, ContainerAsync<GenericImage>)> {
    for _ in 1..TRIES {
        let port = next()?;
        match request(port).start().await {
            Ok(container) => return Ok((port, container)),
            Err(error) if is_taken(&error.to_string()) => remove(name).await?,
            Err(error) => return Err(error.into()),
        }
    }
    let port = next()?;
    Ok((port, request(port).start().await?))
}

/// Returns true if another container or program has the port.
fn is_taken(error: &str) -> bool {
    error.contains("port is already allocated") || error.contains("address already in use")
}

/// Removes a container. One that could not be started exists as well, and has the name.
async fn remove(name: &str) -> Result {
    let docker = Docker::connect_with_defaults()?.negotiate_version().await?;
    let force = RemoveContainerOptionsBuilder::new().force(true).v(true);
    docker.remove_container(name, Some(force.build())).await?;
    Ok(())
}

#[tokio::test]
async fn a_port_in_use_is_exchanged_for_another() -> Result {
    let name = format!("eldest-ports-{}", std::process::id());
    let request = |port: u16, name: &str| {
        let image = GenericImage::new(ETCD, &etcd_tag()).with_mapped_port(port, 2379.tcp());
        owned(image.with_container_name(name))
    };
    let other = format!("{name}-other");
    let (allocated, _other) = start(&other, free, |port| request(port, &other)).await?;
    let program = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut taken = vec![allocated, program.local_addr()?.port()];
    let next = || taken.pop().map_or_else(free, Ok);
    let (port, _started) = start(&name, next, |port| request(port, &name)).await?;
    assert!(taken.is_empty(), "both were tried");
    let address = Container::find(&name).await?.address(2379).await?;
    assert_eq!(address.port(), port);
    // A caller that wants one port only gets the error.
    let late = format!("{name}-late");
    let error = start(&late, || Ok(port), |port| request(port, &late)).await;
    let error = error.err().ok_or("started twice")?.to_string();
    assert!(is_taken(&error), "{error}");
    remove(&late).await
}
