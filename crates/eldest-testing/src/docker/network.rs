//! Creates a Docker network for a test and removes it when the value is dropped.

use bollard::models::{EndpointSettings, NetworkConnectRequest, NetworkCreateRequest};

use super::{Container, ErrorKind, TestError, engine, owner_label};

/// A network of this test, with the [label](super::owner_label) of this process. testcontainers makes networks too, but
/// without labels: name this one in `with_network`.
///
/// Dropping the value removes the network. Its containers must be gone by then: declare the network before them.
#[derive(Debug)]
pub struct Network {
    name: String,
}

impl Network {
    /// Makes a bridge network with that name.
    ///
    /// # Errors
    ///
    /// The engine cannot be reached, or refuses: the name is taken.
    pub async fn create(name: impl Into<String>) -> Result<Self, TestError> {
        Self::of(name.into(), false).await
    }

    /// Makes a bridge network without a way out. No port is published through it, so a container that is cut from it
    /// keeps the ports that it published through another network.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub async fn internal(name: impl Into<String>) -> Result<Self, TestError> {
        Self::of(name.into(), true).await
    }

    async fn of(name: String, internal: bool) -> Result<Self, TestError> {
        let docker = engine::connect().await?;
        // Old engines allow two networks of one name unless the request forbids it, and newer ones never do; only this
        // check beforehand works with all.
        if docker.inspect_network(&name, None).await.is_ok() {
            let text = format!("there is a network {name} already");
            return Err(TestError::new(ErrorKind::Refused, text));
        }
        let (key, value) = owner_label();
        let request = NetworkCreateRequest {
            name: name.clone(),
            internal: Some(internal),
            labels: Some([(key.to_owned(), value)].into()),
            ..NetworkCreateRequest::default()
        };
        let done = docker.create_network(request).await;
        done.map_err(|error| engine::failed("create network", &name, &error))?;
        Ok(Self { name })
    }

    /// Connects a container to the network; the other containers then reach it by `alias` too.
    ///
    /// # Errors
    ///
    /// The engine refused.
    pub async fn connect(&self, container: &Container, alias: &str) -> Result<(), TestError> {
        let request = NetworkConnectRequest {
            container: container.id().to_owned(),
            endpoint_config: Some(EndpointSettings {
                aliases: Some(vec![alias.to_owned()]),
                ..EndpointSettings::default()
            }),
        };
        let docker = engine::connect().await?;
        let done = docker.connect_network(&self.name, request).await;
        done.map_err(|error| engine::failed("connect to a network", container.name(), &error))
    }

    /// Returns the network's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        // The removal needs a thread of its own, because a runtime cannot be waited for from within.
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| {
                    TestError::because(ErrorKind::Machine, "cannot make a runtime", error)
                })?;
            runtime.block_on(async {
                match engine::connect().await?.remove_network(&name).await {
                    Err(error) if !engine::is_gone(&error) => {
                        Err(engine::failed("remove network", &name, &error))
                    }
                    _ => Ok(()),
                }
            })
        });
        if let Ok(Err(error)) = removal.join() {
            tracing::warn!(?error, "a network of a test is left for the next sweep");
        }
    }
}
