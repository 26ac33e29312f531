//! Starts containers at ports that stay reserved while the container is down or cut off from its network.

use std::cell::RefCell;
use std::net::{Ipv4Addr, TcpListener};

use eldest_testing::docker::Container;
use eldest_testing::internal::Port;
use testcontainers::bollard::Docker;
use testcontainers::bollard::query_parameters::RemoveContainerOptionsBuilder;
use testcontainers::core::IntoContainerPort;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt};

use crate::images::{ETCD, etcd_tag};
use crate::lab::Result;
use crate::member::owned;

/// How many ports are tried.
const TRIES: usize = 5;

/// Starts the container with that name at a port that no other test takes until the returned port is dropped. Another program
/// may take it between our check and the engine's; then another port is used.
pub(crate) async fn start(
    name: &str,
    request: impl Fn(u16) -> ContainerRequest<GenericImage>,
) -> Result<(Port, ContainerAsync<GenericImage>)> {
    for _ in 1..TRIES {
        let port = Port::free()?;
        match request(port.number()).start().await {
            Ok(container) => return Ok((port, container)),
            Err(error) if is_taken(&error.to_string()) => remove(name).await?,
            Err(error) => return Err(error.into()),
        }
    }
    let port = Port::free()?;
    let container = request(port.number()).start().await?;
    Ok((port, container))
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
    let (allocated, _other) = start(&other, |port| request(port, &other)).await?;
    let program = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let taken = RefCell::new(vec![allocated.number(), program.local_addr()?.port()]);
    let taken_first = |port| request(taken.borrow_mut().pop().unwrap_or(port), &name);
    let (port, _started) = start(&name, taken_first).await?;
    assert!(taken.borrow().is_empty(), "both were tried");
    let address = Container::find(&name).await?.address(2379).await?;
    assert_eq!(address.port(), port.number());
    let late = format!("{name}-late");
    let error = start(&late, |_| request(port.number(), &late)).await;
    let error = error.err().ok_or("started twice")?.to_string();
    assert!(is_taken(&error), "{error}");
    remove(&late).await
}
