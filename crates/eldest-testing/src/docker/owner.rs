//! Labels containers, networks and volumes with the process that made them, and removes those whose process no longer
//! runs.
#![allow(clippy::disallowed_methods)] // other sweeps take real time

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder,
};

use super::{ErrorKind, TestError, engine};

/// The number of attempts to remove objects of one kind; with the pauses, half a minute.
const TRIES: u32 = 150;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The label whose value names the process that made an object: `<process id>-<start time>`. The start time is field 22
/// of `/proc/<process id>/stat`, because process ids are used again.
pub const OWNER_LABEL: &str = "eldest.test.owner";

/// Returns the label for everything that this process makes: [`OWNER_LABEL`] and its value.
///
/// Without `/proc`, the value names no process, so [`sweep`] leaves the objects alone.
pub fn owner_label() -> (&'static str, String) {
    let pid = std::process::id();
    let started = started(pid).unwrap_or_else(|| "unknown".to_owned());
    (OWNER_LABEL, format!("{pid}-{started}"))
}

/// Removes the containers, networks and volumes whose [owner](OWNER_LABEL) is a process that no longer runs, and
/// returns their names.
///
/// Objects without the label stay, and so do those of a living process, so another test run is not disturbed. Several
/// sweeps at once, even in several processes, wait for one another; each returns what it removed itself.
///
/// Call `sweep` only if all processes that use the engine see each other: an owner in another container, or on another
/// machine, looks dead.
///
/// # Errors
///
/// The engine cannot be reached, or still refuses to remove something after half a minute; there is no `/proc` to find
/// owners in.
pub async fn sweep() -> Result<Vec<String>, TestError> {
    if !Path::new("/proc/self/stat").exists() {
        let text = "without /proc nobody can tell which owners still run";
        return Err(TestError::new(ErrorKind::Machine, text));
    }
    sweep_by(&engine::connect().await?, TRIES).await
}

pub(super) async fn sweep_by(docker: &Docker, tries: u32) -> Result<Vec<String>, TestError> {
    let mut swept = Vec::new();
    // The order matters: a network or a volume in use cannot be removed.
    for kind in [Kind::Container, Kind::Network, Kind::Volume] {
        kind.sweep(docker, tries, &mut swept).await?;
    }
    Ok(swept)
}

#[derive(Clone, Copy)]
enum Kind {
    Container,
    Network,
    Volume,
}

/// An object of a dead owner, and the name that people know it by.
struct Left {
    id: String,
    name: String,
}

impl Kind {
    /// Removes all objects of dead owners. Other sweeps may be removing the same objects, or containers that still use
    /// them. So it does not matter which sweep removes an object; in the end none may be left.
    async fn sweep(
        self,
        docker: &Docker,
        tries: u32,
        swept: &mut Vec<String>,
    ) -> Result<(), TestError> {
        for again in (0..tries).rev() {
            let mut refused = None;
            for left in self.left(docker).await? {
                let name = format!("{} {}", self.name(), left.name);
                match self.remove(docker, &left.id).await {
                    Ok(()) => swept.push(name),
                    Err(error) if engine::is_gone(&error) => {}
                    Err(error) => refused = Some(engine::failed("remove", &name, &error)),
                }
            }
            match refused {
                None => break,
                Some(error) if again == 0 => return Err(error),
                Some(_) => tokio::time::sleep(PAUSE).await,
            }
        }
        Ok(())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Network => "network",
            Self::Volume => "volume",
        }
    }

    async fn left(self, docker: &Docker) -> Result<Vec<Left>, TestError> {
        let left = match self {
            Self::Container => containers(docker).await,
            Self::Network => networks(docker).await,
            Self::Volume => volumes(docker).await,
        };
        left.map_err(|error| engine::failed("list what is left of kind", self.name(), &error))
    }

    async fn remove(self, docker: &Docker, id: &str) -> Result<(), Error> {
        match self {
            Self::Container => {
                let force = RemoveContainerOptionsBuilder::new().force(true).v(true);
                docker.remove_container(id, Some(force.build())).await
            }
            Self::Network => docker.remove_network(id).await,
            Self::Volume => {
                let force = RemoveVolumeOptionsBuilder::new().force(true).build();
                docker.remove_volume(id, Some(force)).await
            }
        }
    }
}

async fn containers(docker: &Docker) -> Result<Vec<Left>, Error> {
    let all = ListContainersOptionsBuilder::new().all(true);
    let all = all.filters(&labelled()).build();
    let listed = docker.list_containers(Some(all)).await?;
    let left = listed.into_iter().filter_map(|container| {
        let id = container
            .id
            .filter(|_| is_left(container.labels.as_ref()))?;
        let name = container.names.into_iter().flatten().next();
        let name = name.map(|name| name.trim_start_matches('/').to_owned());
        let name = name.unwrap_or_else(|| id.clone());
        Some(Left { id, name })
    });
    Ok(left.collect())
}

async fn networks(docker: &Docker) -> Result<Vec<Left>, Error> {
    let options = ListNetworksOptionsBuilder::new().filters(&labelled());
    let listed = docker.list_networks(Some(options.build())).await?;
    let left = listed.into_iter().filter_map(|network| {
        let id = network.id.filter(|_| is_left(network.labels.as_ref()))?;
        let name = network.name.unwrap_or_else(|| id.clone());
        Some(Left { id, name })
    });
    Ok(left.collect())
}

async fn volumes(docker: &Docker) -> Result<Vec<Left>, Error> {
    let options = ListVolumesOptionsBuilder::new().filters(&labelled());
    let listed = docker.list_volumes(Some(options.build())).await?;
    let left = listed.volumes.into_iter().flatten();
    let left = left.filter(|volume| is_left(Some(&volume.labels)));
    let left = left.map(|volume| Left {
        id: volume.name.clone(),
        name: volume.name,
    });
    Ok(left.collect())
}

fn labelled() -> HashMap<&'static str, Vec<&'static str>> {
    HashMap::from([("label", vec![OWNER_LABEL])])
}

/// Returns true if its owner is known and no longer runs.
fn is_left(labels: Option<&HashMap<String, String>>) -> bool {
    let owner = labels.and_then(|labels| labels.get(OWNER_LABEL));
    owner.is_some_and(|owner| is_dead(owner))
}

/// Returns true if the value names a process that no longer runs. A value of another form names no process.
fn is_dead(owner: &str) -> bool {
    let Some((pid, start)) = owner.split_once('-') else {
        return false;
    };
    match (pid.parse(), start.parse::<u64>()) {
        (Ok(pid), Ok(_)) => started(pid).as_deref() != Some(start),
        _ => false,
    }
}

/// Returns when that process started, in clock ticks since boot. Returns `None` if it has ended, even if its parent has
/// not waited for it.
fn started(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets, and may contain any characters.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let since_boot = fields.nth(18)?;
    (!matches!(state, "Z" | "X")).then(|| since_boot.to_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_under_its_own_number_and_start_alone() {
        let (key, own) = owner_label();
        assert_eq!(key, OWNER_LABEL);
        assert!(!is_dead(&own));
        let (pid, start) = own.split_once('-').expect("two numbers");
        assert!(start.parse::<u64>().expect("a number") > 0);
        assert!(is_dead(&format!("{pid}-1")), "the number was used again");
        assert!(is_dead(&format!("{}-{start}", u32::MAX)));
        for unknown in ["", "-", "1", "a-b", "1-", &format!("{pid}-unknown")] {
            assert!(!is_dead(unknown), "{unknown:?} says nothing");
        }
    }

    #[test]
    fn a_process_that_nobody_waited_for_is_dead() {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "read -r line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("a shell");
        let owner = format!("{}-{}", child.id(), started(child.id()).expect("it runs"));
        assert!(!is_dead(&owner));
        child.kill().expect("killed");
        // SIGKILL takes a moment to act; a second is ample.
        let zombie = (0..1_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            is_dead(&owner)
        });
        child.wait().expect("waited for");
        assert!(zombie, "a zombie owns nothing");
    }
}
