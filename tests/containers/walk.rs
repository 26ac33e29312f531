//! Hides how README's walk through three data centres is read and taken: its commands are run as they stand there, and
//! its lines are what is expected.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use eldest::BoxError;
use eldest::testing::docker::owner_label;
use eldest::testing::eventually;
use tempfile::TempDir;

use crate::images::{ETCD, etcd_tag};

type Result<T = ()> = std::result::Result<T, BoxError>;

/// As docker-compose.yml sets it.
const TTL: Duration = Duration::from_secs(5);
/// etcd looks for expired leases twice a second.
const EXPIRY: Duration = Duration::from_millis(500);
/// What a takeover may take beyond that on a busy machine: etcd's revocation, and the news of it.
const SLACK: Duration = Duration::from_secs(2);
/// Patience with containers, not with the election.
const PATIENCE: Duration = Duration::from_secs(120);

const SECTION: &str = "\n## Three data centres on a laptop\n";
const UP: &str = "docker-compose up -d";
const LOGS: &str = "docker-compose logs --no-color --no-log-prefix node1 node2 node3 | sort";
const QUEUE: &str = "docker-compose exec -T etcd3 etcdctl get eldest/demo/ --prefix --sort-by=CREATE --print-value-only";
const COUNT: &str =
    "docker-compose exec -T etcd3 etcdctl get eldest-node/count/demo --print-value-only";
const NODES: [&str; 3] = ["node1", "node2", "node3"];

/// What a node says that waited, and whose lease ended all the same: it was too slow for its TTL.
const LATE: &str = "my lease is gone";
/// A machine with other things to do can be too slow; three times in a row it is not the machine.
const WALKS: usize = 3;

/// A command of README, and the lines that README shows after it.
#[derive(Debug, Clone, Default)]
struct Step {
    command: String,
    lines: Vec<String>,
}

/// README's steps: commands from its blocks of shell, each with the lines of the next block of text.
fn steps(readme: &str) -> Vec<Step> {
    let section = readme
        .split_once(SECTION)
        .expect("README has the section")
        .1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut steps: Vec<Step> = Vec::new();
    let mut language = None;
    for line in section.lines() {
        match (line.strip_prefix("```"), language) {
            (Some(begins), None) => language = Some(begins),
            (Some(_), Some(_)) => language = None,
            (None, Some("sh")) => {
                let command = line.split(" # ").next().unwrap_or_default().trim();
                let command = command.to_owned();
                steps.push(Step {
                    command,
                    lines: Vec::new(),
                });
            }
            (None, Some("text")) => {
                let step = steps.last_mut().expect("a command comes before its lines");
                step.lines.push(line.to_owned());
            }
            (None, _) => {}
        }
    }
    steps
}

/// What differs from run to run is made alike: times, tokens, counts.
fn alike(line: &str) -> String {
    let mut before = "";
    let words = line.split(' ').map(|word| {
        let bare = word.trim_end_matches([';', ',']);
        let time = bare.len() == "2026-11-21T11:00:00.123Z".len() && bare.ends_with('Z');
        let number = bare.parse::<u64>().is_ok() && ["token", "wrote", "is"].contains(&before);
        before = word;
        match (time, number) {
            (true, _) => word.replace(bare, "TIME"),
            (_, true) => word.replace(bare, "N"),
            _ => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A line of a node.
#[derive(Debug, Clone)]
struct Line {
    text: String,
    /// Who says it.
    node: String,
    /// When, by the wall clock that all containers share.
    at: SystemTime,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        // Compose v2 clears the line on the terminal first, also where there is none.
        let text = text.trim_start_matches("\x1b[2K");
        let mut words = text.split(' ');
        let at = time(words.next()?)?;
        let node = words.next()?.to_owned();
        let text = text.to_owned();
        Some(Self { text, node, at })
    }

    fn token(&self) -> Option<i64> {
        let (_, rest) = self.text.split_once(" token ")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    }

    fn since(&self) -> Option<&str> {
        let (_, rest) = self.text.split_once(" since ")?;
        rest.split([',', ';']).next()
    }
}

/// A time in RFC 3339, in UTC.
fn time(text: &str) -> Option<SystemTime> {
    Some(text.parse::<jiff::Timestamp>().ok()?.into())
}

/// One copy of the demo, removed at the end.
struct Walk {
    compose: String,
    steps: std::vec::IntoIter<Step>,
    /// README's names, and who has these parts today: README's node1 is whoever leads first.
    parts: BTreeMap<&'static str, String>,
    /// How many lines were known before the last command.
    before: usize,
    _folder: TempDir,
}

impl Walk {
    fn new(program: &str, kind: &str) -> Result<Self> {
        let etcd = format!("{ETCD}:{}", etcd_tag());
        let node =
            std::env::var("ELDEST_NODE_IMAGE").unwrap_or_else(|_| "eldest-node-test".to_owned());
        for image in [&etcd, &node] {
            let found = Command::new("docker")
                .args(["image", "inspect", image])
                .output()?;
            if !found.status.success() {
                let told = String::from_utf8_lossy(&found.stderr).into_owned();
                return Err(format!(
                    "no image {image}: `cargo xtask images` makes it ({})",
                    told.trim()
                )
                .into());
            }
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("override.yml");
        std::fs::write(&file, labelled(&etcd, &node))?;
        let main = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docker-compose.yml");
        let project = format!("eldest-walk-{kind}-{}", std::process::id());
        let compose = format!(
            "{program} -p {project} -f '{}' -f '{}'",
            main.display(),
            file.display()
        );
        Ok(Self {
            compose,
            steps: steps(include_str!("../../README.md")).into_iter(),
            parts: BTreeMap::new(),
            before: 0,
            _folder: folder,
        })
    }

    /// What README says of its node1 is said of whoever has that part.
    fn cast(&self, text: &str) -> String {
        // In two steps: names that are put in are not to be replaced again.
        let mut cast = text.to_owned();
        for (at, part) in self.parts.keys().enumerate() {
            cast = cast.replace(part, &format!("<node {at}>"));
            cast = cast.replace(&part.replace("node", "dc"), &format!("<dc {at}>"));
        }
        for (at, name) in self.parts.values().enumerate() {
            cast = cast.replace(&format!("<node {at}>"), name);
            cast = cast.replace(&format!("<dc {at}>"), &name.replace("node", "dc"));
        }
        cast
    }

    fn part(&self, name: &str) -> &str {
        &self.parts[name]
    }

    /// A command as README writes it.
    fn try_run(&self, command: &str) -> Result<Output> {
        let command = self.cast(command).replace("docker-compose", &self.compose);
        Ok(Command::new("sh").args(["-c", &command]).output()?)
    }

    fn run(&self, command: &str) -> Result<String> {
        let output = self.try_run(command)?;
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(out);
        }
        let err = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command}: {}\n{out}{err}", output.status).into())
    }

    /// Every line of the nodes up to now, in order of time.
    fn lines(&self) -> Result<Vec<Line>> {
        let text = self.run(LOGS)?;
        Ok(text.lines().filter_map(Line::parse).collect())
    }

    /// The lines since the last command.
    fn news(&self) -> Result<Vec<Line>> {
        Ok(self.lines()?.split_off(self.before))
    }

    /// Takes README's next step, which must be that command, and waits for what README shows after it. An error, at
    /// once, if a node was [`LATE`]: then README's lines do not come.
    async fn step(&mut self, command: &str) -> Result<Vec<Line>> {
        let step = self.steps.next().unwrap_or_default();
        assert_eq!(step.command, command, "README and its test differ");
        self.before = if command == UP {
            0
        } else {
            self.lines()?.len()
        };
        self.run(command)?;
        if command == UP {
            self.parts = self.order().await?;
        }
        let wanted: Vec<String> = step
            .lines
            .iter()
            .map(|line| alike(&self.cast(line)))
            .collect();
        let mut missing = wanted.clone();
        let found = eventually(PATIENCE, "the lines are there", async || {
            let news = self.news().ok()?;
            let said: Vec<String> = news.iter().map(|line| alike(&line.text)).collect();
            missing = wanted
                .iter()
                .filter(|line| !said.contains(line))
                .cloned()
                .collect();
            let late = news.iter().any(|line| line.text.contains(LATE));
            (missing.is_empty() || late).then_some(news)
        });
        match found.await {
            Ok(news) if missing.is_empty() => Ok(news),
            Ok(_) => Err(format!("{command}: {LATE}").into()),
            Err(error) => {
                let (missing, news) = (missing.join("\n"), self.news()?);
                let news: Vec<String> = news.into_iter().map(|line| line.text).collect();
                Err(format!(
                    "{command}: {error}; missing:\n{missing}\nthere is:\n{}",
                    news.join("\n")
                )
                .into())
            }
        }
    }

    /// Who leads, who is next and who is last, once all three say so.
    async fn order(&self) -> Result<BTreeMap<&'static str, String>> {
        let ends = [": I lead with ", "; I wait, 1 ahead", "; I wait, 2 ahead"];
        eventually(PATIENCE, "three nodes are in line", async || {
            let lines = self.lines().ok()?;
            let mut parts = BTreeMap::new();
            for (part, end) in NODES.into_iter().zip(ends) {
                let line = lines.iter().find(|line| line.text.contains(end))?;
                parts.insert(part, line.node.clone());
            }
            Some(parts)
        })
        .await
    }

    /// The queue as etcd has it, the eldest first.
    fn queue(&self) -> Result<Vec<String>> {
        let values = self.run(QUEUE)?;
        let identity = |line: &str| -> Result<String> {
            let value: serde_json::Value = serde_json::from_str(line)?;
            Ok(value["identity"].as_str().unwrap_or_default().to_owned())
        };
        values
            .lines()
            .filter(|line| !line.is_empty())
            .map(identity)
            .collect()
    }

    /// Waits until README's nodes, and nobody else, stand in that order.
    async fn stand(&self, parts: &[&str]) -> Result {
        let wanted: Vec<&str> = parts.iter().map(|part| self.part(part)).collect();
        let what = format!("etcd's queue is {wanted:?}");
        eventually(PATIENCE, what, async || {
            self.queue().ok().filter(|queue| *queue == wanted)
        })
        .await?;
        Ok(())
    }

    /// What the leaders have counted up to.
    fn count(&self) -> Option<u64> {
        self.run(COUNT).ok()?.trim().parse().ok()
    }

    /// When the container of a service, by the name that README gives it, ended.
    fn ended(&self, service: &str) -> Result<SystemTime> {
        let id = self.run(&format!("docker-compose ps -a -q {service}"))?;
        let inspect = Command::new("docker")
            .args(["inspect", "--format", "{{.State.FinishedAt}}", id.trim()])
            .output()?;
        let text = String::from_utf8_lossy(&inspect.stdout).into_owned();
        time(text.trim()).ok_or_else(|| format!("{service} ended at {text}").into())
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        let _ = self.try_run("docker-compose down --volumes --timeout 1");
    }
}

/// The test's own additions to docker-compose.yml.
fn labelled(etcd: &str, node: &str) -> String {
    let (label, owner) = owner_label();
    let labels = format!("labels: {{ {label}: \"{owner}\" }}");
    let of = |names: &[&str], rest: &str| -> String {
        let lines = names
            .iter()
            .map(|name| format!("  {name}: {{ {rest}{labels} }}"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let etcds = ["etcd1", "etcd2", "etcd3"];
    format!(
        "services:\n{}\n{}\nnetworks:\n{}\nvolumes:\n{}\n",
        of(&etcds, &format!("image: \"{etcd}\", ")),
        of(&NODES, &format!("image: \"{node}\", ")),
        of(&["peers", "clients"], ""),
        of(&etcds, ""),
    )
}

/// The program of that major version: the one that the variable names, or the one in the PATH.
fn compose(major: char) -> Result<String> {
    let variable = format!("ELDEST_COMPOSE_V{major}");
    if let Ok(program) = std::env::var(&variable) {
        return Ok(program);
    }
    for program in ["docker-compose", "docker compose"] {
        let asked = Command::new("sh")
            .args(["-c", &format!("{program} version --short")])
            .output()?;
        let version = String::from_utf8_lossy(&asked.stdout).into_owned();
        if asked.status.success() && version.trim().trim_start_matches('v').starts_with(major) {
            return Ok(program.to_owned());
        }
    }
    Err(format!(
        "there is no docker-compose {major}: install it (Debian 12's package docker-compose is version 1, that of \
         Debian 13 version 2), or name the program in {variable}"
    )
    .into())
}

fn only<'a>(lines: &'a [Line], node: &str, words: &str) -> Result<&'a Line> {
    let mut found = lines
        .iter()
        .filter(|line| line.node == node && line.text.contains(words));
    match (found.next(), found.next()) {
        (Some(line), None) => Ok(line),
        (found, _) => {
            Err(format!("{node} says {words:?} not once, but {found:?} of {lines:?}").into())
        }
    }
}

/// Takes the walk, again if a node was [`LATE`].
async fn walk(program: &str, kind: &str) -> Result {
    let mut again = 1..WALKS;
    loop {
        match walk_once(program, kind).await {
            Err(error) if error.to_string().ends_with(LATE) && again.next().is_some() => {
                eprintln!("once more: {error}");
            }
            result => return result,
        }
    }
}

async fn walk_once(program: &str, kind: &str) -> Result {
    let mut walk = Walk::new(program, kind)?;
    let news = walk.step(UP).await?;
    let (first, next, last) = (
        walk.part("node1").to_owned(),
        walk.part("node2").to_owned(),
        walk.part("node3").to_owned(),
    );
    let leads = only(&news, &first, "I lead with")?.clone();
    for other in [&next, &last] {
        let told = only(&news, other, "leads with token")?;
        assert_eq!((told.token(), told.since()), (leads.token(), leads.since()));
    }
    walk.stand(&["node1", "node2", "node3"]).await?;
    let shown = walk.step(LOGS).await?;
    assert!(shown.is_empty(), "{shown:?}");
    walk.step(QUEUE).await?;

    // The leader dies: the next eldest leads, in time.
    let news = walk.step("docker-compose kill node1").await?;
    let died = walk.ended("node1")?;
    let leads = only(&news, &next, "I lead with")?.clone();
    let took = leads.at.duration_since(died).unwrap_or_default();
    assert!(
        took <= TTL + EXPIRY + SLACK,
        "{next} led {took:?} after {first} died"
    );
    walk.stand(&["node2", "node3"]).await?;

    // It comes back, and does not preempt.
    let news = walk.step("docker-compose start node1").await?;
    walk.stand(&["node2", "node3", "node1"]).await?;
    let told = only(&news, &first, "I wait, 2 ahead")?;
    assert_eq!((told.token(), told.since()), (leads.token(), leads.since()));
    let others = walk.news()?;
    assert!(others.iter().all(|line| line.node == first), "{others:?}");

    // One member less: nothing happens, for longer than a TTL, and the leader works on.
    walk.step("docker-compose stop etcd1").await?;
    let counted = walk.count().ok_or("there is no count")?;
    let enough = counted + TTL.as_secs() + 1;
    eventually(PATIENCE, "the leader counts on", async || {
        walk.count().filter(|count| *count >= enough)
    })
    .await?;
    let news = walk.news()?;
    assert!(news.is_empty(), "{news:?}");
    walk.stand(&["node2", "node3", "node1"]).await?;

    // Two members less: nobody leads before a lease can expire.
    let news = walk.step("docker-compose stop etcd2").await?;
    let cut = walk.ended("etcd2")?;
    for node in [&first, &next, &last] {
        let follows = only(&news, node, "I follow and know no leader")?;
        let took = follows.at.duration_since(cut).unwrap_or_default();
        assert!(
            took < TTL,
            "{node} said {took:?} after the quorum was lost that it follows"
        );
    }
    let over = only(&news, &next, "my term with token")?;
    assert_eq!(over.token(), leads.token());

    // Both are back: the leader had given its place up, and those who waited had kept theirs.
    let news = walk.step("docker-compose start etcd1 etcd2").await?;
    walk.stand(&["node3", "node1", "node2"]).await?;
    let now = only(&news, &last, "I lead with")?;
    assert!(now.token() > leads.token(), "{now:?} after {leads:?}");
    let all = walk.news()?;
    let leaders: Vec<_> = all
        .iter()
        .filter(|line| line.text.contains("I lead with"))
        .collect();
    assert_eq!(leaders.len(), 1, "{leaders:?}");

    let step = walk.steps.next().unwrap_or_default();
    assert_eq!(step.command, "docker-compose down --volumes");
    walk.run(&step.command)?;
    assert_eq!(walk.run("docker-compose ps -a -q")?.trim(), "");
    let rest: Vec<Step> = walk.steps.by_ref().collect();
    assert!(rest.is_empty(), "README goes on: {rest:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn readme_s_walk_goes_as_it_says_on_compose_1() -> Result {
    walk(&compose('1')?, "v1").await
}

#[tokio::test(flavor = "multi_thread")]
async fn readme_s_walk_goes_as_it_says_on_compose_2() -> Result {
    walk(&compose('2')?, "v2").await
}
