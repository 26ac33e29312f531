//! Hides whose a container, a network or a volume is, and what is left of owners that are no more.

use std::collections::HashMap;
use std::path::Path;

use bollard::Docker;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder,
};

use super::{BoxError, engine};

/// The label whose value says which process made a thing: `<process id>-<start time>`, the second being field 22 of
/// `/proc/<process id>/stat`, for process ids are used again.
pub const OWNER_LABEL: &str = "eldest.test.owner";

/// The label for everything that this process makes: [`OWNER_LABEL`] and its value.
///
/// Where there is no `/proc` the value names no process that [`sweep`] could judge.
pub fn owner_label() -> (&'static str, String) {
    let pid = std::process::id();
    let started = started(pid).unwrap_or_else(|| "unknown".to_owned());
    (OWNER_LABEL, format!("{pid}-{started}"))
}

/// Removes the containers, networks and volumes whose [owner](OWNER_LABEL) is a process that no longer runs, and
/// answers with their names. What has no such label stays, and what belongs to a living process: another test run
/// beside this one is left alone.
///
/// Call it only where all that use the engine see each other's processes: an owner in another container, or on
/// another machine, looks dead.
///
/// # Errors
///
/// The engine cannot be reached or refuses; there is no `/proc` to look for owners in.
pub async fn sweep() -> Result<Vec<String>, BoxError> {
    if !Path::new("/proc/self/stat").exists() {
        return Err("without /proc nobody can tell which owners still run".into());
    }
    let docker = engine::connect().await?;
    let mut swept = Vec::new();
    // In this order: a network or a volume in use cannot be removed.
    containers(&docker, &mut swept).await?;
    networks(&docker, &mut swept).await?;
    volumes(&docker, &mut swept).await?;
    Ok(swept)
}

async fn containers(docker: &Docker, swept: &mut Vec<String>) -> Result<(), BoxError> {
    let all = ListContainersOptionsBuilder::new().all(true);
    let listed = docker.list_containers(Some(all.filters(&labelled()).build()));
    let listed = listed
        .await
        .map_err(|error| unlisted("containers", &error))?;
    for container in listed {
        let Some(id) = container.id.filter(|_| is_left(container.labels.as_ref())) else {
            continue;
        };
        let force = RemoveContainerOptionsBuilder::new().force(true).v(true);
        let done = docker.remove_container(&id, Some(force.build())).await;
        let names = container.names.unwrap_or_default();
        let name = names
            .first()
            .map_or(&*id, |name| name.trim_start_matches('/'));
        note("container", name, done, swept)?;
    }
    Ok(())
}

async fn networks(docker: &Docker, swept: &mut Vec<String>) -> Result<(), BoxError> {
    let options = ListNetworksOptionsBuilder::new().filters(&labelled());
    let listed = docker.list_networks(Some(options.build())).await;
    for network in listed.map_err(|error| unlisted("networks", &error))? {
        if let Some(id) = network.id.filter(|_| is_left(network.labels.as_ref())) {
            let done = docker.remove_network(&id).await;
            note("network", &network.name.unwrap_or(id), done, swept)?;
        }
    }
    Ok(())
}

async fn volumes(docker: &Docker, swept: &mut Vec<String>) -> Result<(), BoxError> {
    let options = ListVolumesOptionsBuilder::new().filters(&labelled());
    let listed = docker.list_volumes(Some(options.build())).await;
    let listed = listed.map_err(|error| unlisted("volumes", &error))?;
    for volume in listed.volumes.unwrap_or_default() {
        if is_left(Some(&volume.labels)) {
            let force = RemoveVolumeOptionsBuilder::new().force(true).build();
            let done = docker.remove_volume(&volume.name, Some(force)).await;
            note("volume", &volume.name, done, swept)?;
        }
    }
    Ok(())
}

fn labelled() -> HashMap<&'static str, Vec<&'static str>> {
    HashMap::from([("label", vec![OWNER_LABEL])])
}

fn unlisted(what: &str, error: &bollard::errors::Error) -> BoxError {
    engine::failed("list", what, error)
}

/// Another sweep may have been faster.
fn note(
    kind: &str,
    name: &str,
    done: Result<(), bollard::errors::Error>,
    swept: &mut Vec<String>,
) -> Result<(), BoxError> {
    match done {
        Ok(()) => swept.push(format!("{kind} {name}")),
        Err(error) if engine::is_gone(&error) || engine::is_going(&error) => {}
        Err(error) => return Err(engine::failed("remove", &format!("{kind} {name}"), &error)),
    }
    Ok(())
}

/// Whether its owner is known and no longer runs.
fn is_left(labels: Option<&HashMap<String, String>>) -> bool {
    let owner = labels.and_then(|labels| labels.get(OWNER_LABEL));
    owner.is_some_and(|owner| is_dead(owner))
}

/// A value of another form is nobody's to judge.
fn is_dead(owner: &str) -> bool {
    let Some((pid, start)) = owner.split_once('-') else {
        return false;
    };
    match (pid.parse(), start.parse::<u64>()) {
        (Ok(pid), Ok(_)) => started(pid).as_deref() != Some(start),
        _ => false,
    }
}

/// When that process started, in clock ticks since boot; nothing if it has ended, though its parent has not yet looked.
fn started(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets, and may hold anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let since_boot = fields.nth(18)?;
    (!matches!(state, "Z" | "X")).then(|| since_boot.to_owned())
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::disallowed_methods)] // waits for the kernel
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
        // SIGKILL takes a moment; a second is long.
        let zombie = (0..1_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            is_dead(&owner)
        });
        child.wait().expect("waited for");
        assert!(zombie, "a zombie owns nothing");
    }
}
