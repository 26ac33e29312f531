//! Finds the containers, networks and volumes that killed test runs left behind, and removes them.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::setup;
use crate::stage::Stage;

/// The label of all objects that a test makes. Its value is `<process id>-<start time>` of the test's process, the
/// latter in clock ticks since boot (field 22 of /proc/PID/stat), because process ids are used again.
const OWNER: &str = "eldest.test.owner";

/// How long another sweep may take with the same objects.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// A kind of object, and the docker commands for it.
struct Kind {
    name: &'static str,
    list: &'static [&'static str],
    id: &'static str,
    remove: &'static [&'static str],
}

/// The kinds in the order of removal, because objects in use cannot be removed.
const KINDS: [Kind; 3] = [
    Kind {
        name: "container",
        list: &["container", "ls", "--all"],
        id: "{{.ID}}",
        remove: &["container", "rm", "--force", "--volumes"],
    },
    Kind {
        name: "network",
        list: &["network", "ls"],
        id: "{{.ID}}",
        remove: &["network", "rm"],
    },
    Kind {
        name: "volume",
        list: &["volume", "ls"],
        id: "{{.Name}}",
        remove: &["volume", "rm", "--force"],
    },
];

/// Removes the objects of processes that no longer run. Objects of a living process stay, because tests of another
/// checkout may run beside ours, and objects without the label are never touched.
///
/// It ignores a stage's time limit, because it cleans up after stages that reached theirs.
pub(crate) fn run(stage: &Stage) -> Result<()> {
    if !Path::new("/proc/self/stat").is_file() {
        stage.say("no sweep: without /proc nobody can say whose process still lives");
        return Ok(());
    }
    for kind in &KINDS {
        kind.sweep(stage)?;
    }
    Ok(())
}

impl Kind {
    /// Removes all objects of dead owners. Other sweeps may be removing the same objects, or objects that still use
    /// them. So it does not matter which sweep removes an object; in the end none may be left.
    fn sweep(&self, stage: &Stage) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut refused = None;
            for (id, owner) in self.left()? {
                let what = format!("{} {id} of {owner}", self.name);
                match docker(self.remove, &[&id]) {
                    Ok(_) => stage.say(&format!("removed {what}")),
                    Err(error) => refused = Some(error.context(format!("cannot remove {what}"))),
                }
            }
            match refused {
                None => return Ok(()),
                Some(error) if Instant::now() > deadline => return Err(error),
                Some(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// Returns the objects whose owner is dead, and the owner.
    fn left(&self) -> Result<Vec<(String, String)>> {
        let filter = format!("label={OWNER}");
        let format = format!("{} {{{{.Label {OWNER:?}}}}}", self.id);
        let list = docker(self.list, &["--filter", &filter, "--format", &format])?;
        let things = list.lines().filter_map(|line| line.split_once(' '));
        let dead = things.filter(|(_, owner)| is_dead(owner));
        Ok(dead.map(|(id, owner)| (id.into(), owner.into())).collect())
    }
}

/// Returns true if that owner is certainly dead. An unreadable label proves nothing.
fn is_dead(owner: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    let Some((pid, start)) = owner.split_once('-') else {
        return false;
    };
    match (number(pid), number(start)) {
        (Some(pid), Some(start)) => started(pid) != Some(start),
        _ => false,
    }
}

/// Returns when the process of this number began, if it still runs.
fn started(pid: u64) -> Option<u64> {
    started_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn started_in(stat: &str) -> Option<u64> {
    // The second field is the program's name in brackets, which may contain both blanks and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let ticks = fields.nth(18)?.parse().ok();
    // The process was killed and not waited for yet.
    ticks.filter(|_| state != "Z" && state != "X")
}

fn docker(command: &[&str], args: &[&str]) -> Result<String> {
    let mut docker = setup::program("docker");
    docker.args(command).args(args).stdin(Stdio::null());
    let output = docker.output().context("starting docker")?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "docker: {}", message.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{KINDS, OWNER, docker, is_dead, run, started, started_in};
    use crate::images;
    use crate::stage::{DEFAULT_LIMIT, Stage};
    use std::process::{Command, Stdio};

    /// Returns this process as an owner.
    fn alive() -> String {
        let pid = std::process::id();
        format!("{pid}-{}", started(pid.into()).unwrap())
    }

    /// Returns a process that has ended, as an owner.
    fn dead() -> String {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let owner = format!("{}-{}", child.id(), started(child.id().into()).unwrap());
        assert!(!is_dead(&owner));
        child.kill().unwrap();
        child.wait().unwrap();
        owner
    }

    #[test]
    fn owner_lives_only_while_its_own_process_runs() {
        assert!(!is_dead(&alive()));
        assert!(is_dead(&dead()));
        assert!(is_dead(&format!("{}-1", std::process::id())));
    }

    #[test]
    fn owner_with_an_unreadable_label_is_not_dead() {
        for owner in ["", "-", "4711", "a-b", "4711-", "4711-x"] {
            assert!(!is_dead(owner), "{owner:?}");
        }
    }

    #[test]
    fn start_time_is_read_past_any_name_and_a_zombie_is_dead() {
        let stat = |name, state| {
            format!("7 ({name}) {state} 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 10 11")
        };
        assert_eq!(started_in(&stat("a", "S")), Some(98765));
        assert_eq!(started_in(&stat("a) R (b", "S")), Some(98765));
        assert_eq!(started_in(&stat("a", "Z")), None);
    }

    /// Makes one object of each kind with this owner, and returns their ids.
    fn things(name: &str, owner: Option<&str>) -> [String; 3] {
        let label = owner.map(|owner| format!("--label={OWNER}={owner}"));
        let create = |command: &[&str], last: &[&str]| {
            let args: Vec<&str> = label
                .as_deref()
                .into_iter()
                .chain(last.iter().copied())
                .collect();
            docker(command, &args).unwrap().trim().to_owned()
        };
        let pid = std::process::id();
        [
            create(&["container", "create"], &[images::bases::DEBIAN]),
            create(
                &["network", "create"],
                &[&format!("eldest-sweep-{pid}-{name}")],
            ),
            create(&["volume", "create"], &[]),
        ]
    }

    fn there(things: &[String; 3]) -> [bool; 3] {
        let kinds = ["container", "network", "volume"];
        std::array::from_fn(|n| docker(&[kinds[n], "inspect"], &[&things[n]]).is_ok())
    }

    #[test]
    #[ignore = "needs the Docker Engine and the base images; the stage `containers` runs it"]
    fn only_objects_of_dead_owners_are_swept() {
        let (of_dead, of_alive, nobodys) = (
            things("dead", Some(&dead())),
            things("alive", Some(&alive())),
            things("nobody", None),
        );
        let result = run(&Stage::start("sweep", DEFAULT_LIMIT));
        let left = [&of_dead, &of_alive, &nobodys].map(there);
        for things in [&of_alive, &nobodys] {
            for (kind, id) in KINDS.iter().zip(things) {
                docker(kind.remove, &[id]).unwrap();
            }
        }
        result.unwrap();
        assert_eq!(left, [[false; 3], [true; 3], [true; 3]]);
    }

    #[test]
    #[ignore = "needs the Docker Engine and the base images; the stage `containers` runs it"]
    fn several_sweeps_at_once_wait_for_one_another() {
        let owner = dead();
        let all = ["one", "two", "three"].map(|name| things(name, Some(&owner)));
        let sweep =
            || run(&Stage::start("sweep", DEFAULT_LIMIT)).map(|()| all.each_ref().map(there));
        let results = std::thread::scope(|scope| {
            [(); 4]
                .map(|()| scope.spawn(sweep))
                .map(|sweep| sweep.join().unwrap())
        });
        for left in results {
            assert_eq!(
                left.unwrap(),
                [[false; 3]; 3],
                "gone, whichever sweep removed it"
            );
        }
    }
}
