//! Hides how README's walk through three data centres is read and taken: its commands are run as they stand there, its
//! lines are what is expected, and the front is called all the way.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use eldest::BoxError;
use eldest::testing::docker::owner_label;
use eldest::testing::eventually;
use tempfile::TempDir;

use crate::front::{Asked, Callers, between_checks, sees_only};
use crate::images::{ETCD, etcd_tag, haproxy, node};

type Result<T = ()> = std::result::Result<T, BoxError>;

/// As docker-compose.yml sets it.
const TTL: Duration = Duration::from_secs(5);
/// What a program has to wind up in: `eldest run`'s grace period and lead of that TTL.
const WIND_UP: Duration = Duration::from_millis(1250);
/// etcd looks for expired leases twice a second.
const EXPIRY: Duration = Duration::from_millis(500);
/// What a takeover may take beyond that on a busy machine: etcd's revocation, and the news of it.
const SLACK: Duration = Duration::from_secs(2);
/// Patience with containers, not with the election.
const PATIENCE: Duration = Duration::from_secs(120);

const SECTION: &str = "\n## Three data centres on a laptop\n";
const UP: &str = "docker-compose up -d";
const LOGS: &str = "docker-compose logs --no-color --no-log-prefix node1 node2 node3 | sort";
const RESIGN: &str = "curl -s -X POST -H 'Authorization: Bearer demo' http://$(docker-compose port node1 8470)/v1/elections/demo/resign";
const NODES: [&str; 3] = ["node1", "node2", "node3"];
/// What a node answers, and its worker.
const NODE_PORT: u16 = 8470;
const WORKER_PORT: u16 = 8080;
/// So many requests wait for a node that is frozen.
const WAITING: usize = 20;

/// What a node logs whose lease is over. Without a quorum that is as it should be, unless its lease was there no more when
/// the quorum came back; while there is one, the node was too slow for its TTL.
const LOST: &str = "lease lost";
const GONE: &str = "reason=\"lease_lost\"";
const TOO_LATE: &str = "a node was too slow for its TTL";
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

/// What differs from run to run is made alike: times, tokens, counts, ages, and how wide a column is for them.
fn alike(line: &str) -> String {
    let mut before = "";
    let words = line.split_whitespace().map(|word| {
        let time = word.len() == "2026-11-21T11:00:00.123Z".len() && word.ends_with('Z');
        let counted = ["token", "answered"].contains(&before) || is_age(before);
        let number = word.trim_end_matches(',').parse::<u64>().is_ok() && counted;
        let alike = match (time, number, is_age(word)) {
            (true, _, _) => "TIME",
            (_, true, _) => "N",
            (_, _, true) => "AGE",
            _ => word,
        };
        before = word;
        alike.to_owned()
            + if word.ends_with(',') && number {
                ","
            } else {
                ""
            }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// As people are shown it: `7s`, `1m24s`.
fn is_age(word: &str) -> bool {
    let digits = |c: char| c.is_ascii_digit();
    word.starts_with(digits) && word.ends_with('s') && {
        let units = word.split(digits).filter(|unit| !unit.is_empty());
        units
            .into_iter()
            .all(|unit| ["h", "m", "s", "ms"].contains(&unit))
    }
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
    /// What a worker says; all else in a node's log is the node's.
    fn parse(text: &str) -> Option<Self> {
        // Compose v2 clears the line on the terminal first, also where there is none.
        let text = text.trim_start_matches("\x1b[2K");
        let mut words = text.split(' ');
        let at = time(words.next()?)?;
        let node = words.next()?.strip_suffix(':')?.to_owned();
        let text = text.to_owned();
        NODES.contains(&&*node).then_some(Self { text, node, at })
    }

    fn token(&self) -> Option<i64> {
        let (_, rest) = self.text.split_once(" token ")?;
        rest.parse().ok()
    }
}

/// A time in RFC 3339, in UTC.
fn time(text: &str) -> Option<SystemTime> {
    Some(text.parse::<jiff::Timestamp>().ok()?.into())
}

/// One copy of the demo, removed at the end.
struct Walk {
    compose: String,
    project: String,
    /// The id of each service's container, which it keeps.
    containers: BTreeMap<String, String>,
    steps: std::vec::IntoIter<Step>,
    /// README's names, and who has these parts today: README's node1 is whoever leads first.
    parts: BTreeMap<&'static str, String>,
    /// How many lines were known before the last command, and how many of them told of a lost lease.
    before: (usize, usize),
    /// What the last command printed.
    output: String,
    /// Somebody's lease may well be lost.
    is_frozen: bool,
    has_quorum: bool,
    /// All went as README says.
    is_done: bool,
    _folder: TempDir,
}

impl Walk {
    fn new(program: &str, kind: &str) -> Result<Self> {
        let etcd = format!("{ETCD}:{}", etcd_tag());
        let node = node();
        for image in [&etcd, &node, &haproxy()] {
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
            project,
            containers: BTreeMap::new(),
            steps: steps(include_str!("../../README.md")).into_iter(),
            parts: BTreeMap::new(),
            before: (0, 0),
            output: String::new(),
            is_frozen: false,
            has_quorum: true,
            is_done: false,
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

    /// Asks the engine itself, which takes a tenth of the time that Compose takes.
    fn docker(args: &[&str]) -> Result<String> {
        let output = Command::new("docker").args(args).output()?;
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        if output.status.success() {
            // What containers write to either, and nothing else.
            return Ok(out + &err);
        }
        Err(format!("docker {args:?}: {}\n{err}", output.status).into())
    }

    fn container(&self, service: &str) -> &str {
        &self.containers[service]
    }

    /// Learns which containers there are.
    fn find(&mut self) -> Result {
        let filter = format!("label=com.docker.compose.project={}", self.project);
        let format = "{{.Label \"com.docker.compose.service\"}} {{.ID}}";
        let found = Self::docker(&["ps", "--all", "--filter", &filter, "--format", format])?;
        let found = found.lines().filter_map(|line| line.split_once(' '));
        self.containers = found
            .map(|(service, id)| (service.to_owned(), id.to_owned()))
            .collect();
        Ok(())
    }

    /// All that nodes and workers have said up to now.
    fn log(&self) -> Result<String> {
        let logs = NODES.map(|node| Self::docker(&["logs", self.container(node)]));
        Ok(logs.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }

    /// Every line of the workers up to now, in order of time.
    fn lines(&self) -> Result<Vec<Line>> {
        let mut lines: Vec<Line> = self.log()?.lines().filter_map(Line::parse).collect();
        lines.sort_by_key(|line| line.at);
        Ok(lines)
    }

    /// The lines since the last command.
    fn news(&self) -> Result<Vec<Line>> {
        Ok(self.lines()?.split_off(self.before.0))
    }

    /// Whether a node was too slow since the last command; then README's lines do not come.
    fn is_late(&self) -> Result<bool> {
        Ok(!self.is_frozen && self.late()? > self.before.1)
    }

    fn late(&self) -> Result<usize> {
        let log = self.log()?;
        let lost = log.lines().filter(|line| line.contains(LOST));
        Ok(lost
            .filter(|line| self.has_quorum || line.contains(GONE))
            .count())
    }

    /// An error, to be tried again, if a node was too slow.
    fn in_time(&self, what: &str) -> Result {
        if self.is_late()? {
            return Err(format!("{what}: {TOO_LATE}").into());
        }
        Ok(())
    }

    /// Takes README's next step, which must be that command, and waits for what README shows after it, be it its output
    /// or what workers say. An error, at once, if a node was too slow.
    async fn step(&mut self, command: &str) -> Result<Vec<Line>> {
        let step = self.steps.next().unwrap_or_default();
        assert_eq!(step.command, command, "README and its test differ");
        if command != UP {
            self.before = (self.lines()?.len(), self.late()?);
        }
        self.output = self.run(command)?;
        if command == UP {
            self.find()?;
            self.parts = self.order().await?;
        }
        let wanted: Vec<String> = step
            .lines
            .iter()
            .map(|line| alike(&self.cast(line)))
            .collect();
        let mut missing = wanted.clone();
        let mut output = self.output.clone();
        let found = eventually(PATIENCE, "the lines are there", async || {
            let news = self.news().ok()?;
            let said = news.iter().map(|line| line.text.as_str());
            let said: Vec<String> = said.chain(output.lines()).map(alike).collect();
            missing = wanted
                .iter()
                .filter(|line| !said.contains(line))
                .cloned()
                .collect();
            if missing.is_empty() || self.is_late().ok()? {
                return Some(news);
            }
            // Who only asks may ask again.
            if command.starts_with("curl -s http") {
                output = self.run(command).ok()?;
            }
            None
        });
        match found.await {
            Ok(news) if missing.is_empty() => Ok(news),
            Ok(_) => Err(format!("{command}: {TOO_LATE}").into()),
            Err(error) => {
                let missing = missing.join("\n");
                Err(
                    format!("{command}: {error}; missing:\n{missing}\nit printed:\n{output}")
                        .into(),
                )
            }
        }
    }

    /// Who leads, who is next and who is last, once all three stand.
    async fn order(&self) -> Result<BTreeMap<&'static str, String>> {
        eventually(PATIENCE, "three nodes are in line", async || {
            let queue = self
                .queue()
                .ok()
                .filter(|queue| queue.len() == NODES.len())?;
            Some(NODES.into_iter().zip(queue).collect())
        })
        .await
    }

    /// The queue as etcd has it, the eldest first.
    fn queue(&self) -> Result<Vec<String>> {
        let get = "exec ETCD etcdctl get eldest/demo/ --prefix --sort-by=CREATE --print-value-only";
        let get = get.replace("ETCD", self.container("etcd3"));
        let values = Self::docker(&get.split(' ').collect::<Vec<_>>())?;
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

    /// Where this machine reaches a port of a service.
    fn port(&self, service: &str, port: u16) -> Result<SocketAddr> {
        let address = Self::docker(&["port", self.container(service), &port.to_string()])?;
        Ok(address.trim().parse()?)
    }

    /// When the container of a service, by the name that README gives it, ended.
    fn ended(&self, service: &str) -> Result<SystemTime> {
        let id = self.container(&self.cast(service));
        let text = Self::docker(&["inspect", "--format", "{{.State.FinishedAt}}", id])?;
        time(text.trim()).ok_or_else(|| format!("{service} ended at {text}").into())
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if !self.is_done
            && let Ok(logs) = self.try_run("docker-compose logs --no-color")
        {
            println!("{}", String::from_utf8_lossy(&logs.stdout));
        }
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
        "services:\n{}\n{}\n{}\nnetworks:\n{}\nvolumes:\n{}\n",
        of(&etcds, &format!("image: \"{etcd}\", ")),
        // Its worker's port too, so that it can be asked past the front.
        of(
            &NODES,
            &format!(
                "image: \"{node}\", ports: [\"127.0.0.1:0:{WORKER_PORT}\"], environment: {{ ELDEST_LOG: warn }}, "
            ),
        ),
        of(&["front"], ""),
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
            Err(error) if error.to_string().ends_with(TOO_LATE) && again.next().is_some() => {
                eprintln!("once more: {error}");
            }
            result => return result,
        }
    }
}

async fn walk_once(program: &str, kind: &str) -> Result {
    let mut walk = Walk::new(program, kind)?;
    let news = walk.step(UP).await?;
    let [first, next, last] = NODES.map(|part| walk.part(part).to_owned());
    let led = only(&news, &first, "I work with")?.clone();
    walk.step(LOGS).await?;
    assert!(walk.output.contains(&led.text), "{}", walk.output);
    walk.step("docker-compose exec -T node2 eldest status demo")
        .await?;
    walk.step("curl -s http://$(docker-compose port front 80)")
        .await?;
    let (front, stats) = (walk.port("front", 80)?, walk.port("front", 8404)?);
    let callers = Callers::start(front);
    assert_eq!(Some(callers.reach(&first).await?), led.token());
    sees_only(stats, &first).await?;
    // Nobody led, and then the front was told at its next look.
    let told = between_checks() + SLACK;

    // The leader resigns: what its worker needs to wind up, never a TTL.
    let from = callers.count();
    let news = walk.step(RESIGN).await?;
    let leads = only(&news, &next, "I work with")?.clone();
    assert!(leads.token() > led.token(), "{leads:?} after {led:?}");
    assert_eq!(Some(callers.reach(&next).await?), leads.token());
    let gap = callers.longest_gap(from);
    println!("{kind}: hand-over: {gap:?} without an answer");
    assert!(gap <= WIND_UP + told, "{gap:?} without an answer");
    walk.stand(&["node2", "node3", "node1"]).await?;
    sees_only(stats, &next).await?;

    // The leader dies: the next eldest leads, in time.
    let from = callers.count();
    let news = walk.step("docker-compose kill node2").await?;
    let died = walk.ended("node2")?;
    let leads = only(&news, &last, "I work with")?.clone();
    let took = leads.at.duration_since(died).unwrap_or_default();
    assert!(
        took <= TTL + EXPIRY + SLACK,
        "{last} led {took:?} after {next} died"
    );
    callers.reach(&last).await?;
    let gap = callers.longest_gap(from);
    println!("{kind}: crash (TTL {TTL:?}): {gap:?} without an answer");
    assert!(gap <= TTL + EXPIRY + told, "{gap:?} without an answer");
    walk.stand(&["node3", "node1"]).await?;

    // It comes back, and does not preempt.
    walk.step("docker-compose start node2").await?;
    walk.stand(&["node3", "node1", "node2"]).await?;
    assert!(walk.news()?.is_empty(), "{:?}", walk.news()?);

    // The leader is frozen beyond its deadline. What it is asked meanwhile it has to answer when it wakes.
    let from = callers.count();
    walk.is_frozen = true;
    let doors = [
        (walk.port(&last, WORKER_PORT)?, "/"),
        (walk.port(&last, NODE_PORT)?, "/leader"),
    ];
    let news = walk.step("docker-compose pause node3").await?;
    let leads = only(&news, &first, "I work with")?.clone();
    assert_eq!(Some(callers.reach(&first).await?), leads.token());
    let gap = callers.longest_gap(from);
    println!("{kind}: frozen (TTL {TTL:?}): {gap:?} without an answer");
    assert!(gap <= TTL + EXPIRY + told, "{gap:?} without an answer");
    let mut asked = Vec::new();
    for (door, path) in doors {
        for _ in 0..WAITING {
            asked.push(Asked::send(door, path).await?);
        }
    }
    walk.step("docker-compose unpause node3").await?;
    for asked in asked {
        let answer = asked.answer().await?;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{last}: {answer}");
    }
    walk.stand(&["node1", "node2", "node3"]).await?;
    sees_only(stats, &first).await?;
    walk.is_frozen = false;

    // One member less: nothing happens, for longer than a TTL, and the leader works on.
    walk.step("docker-compose stop etcd1").await?;
    let stayed = callers.stay(TTL + Duration::from_secs(1)).await?;
    walk.in_time("one etcd less")?;
    let news = walk.news()?;
    assert!(stayed && news.is_empty(), "{news:?}");
    walk.stand(&["node1", "node2", "node3"]).await?;

    // Two members less: nobody leads before a lease can expire.
    walk.has_quorum = false;
    let news = walk.step("docker-compose stop etcd2").await?;
    let cut = walk.ended("etcd2")?;
    let over = only(&news, &first, "I was told to end")?;
    let took = over.at.duration_since(cut).unwrap_or_default();
    assert!(
        took < TTL,
        "{first}'s worker was told {took:?} after the quorum was lost"
    );
    walk.step("curl -s http://$(docker-compose port node3 8470)/leader")
        .await?;
    for node in [&first, &next] {
        let door = walk.port(node, NODE_PORT)?;
        eventually(
            PATIENCE,
            format!("{node} says that its lease is lost"),
            async || {
                let answer = Asked::send(door, "/leader")
                    .await
                    .ok()?
                    .answer()
                    .await
                    .ok()?;
                let is_lost =
                    answer.starts_with("HTTP/1.1 503") && answer.contains("\"session\":\"lost\"");
                is_lost.then_some(())
            },
        )
        .await?;
    }

    // Both are back: the leader had given its place up, and those who waited had kept theirs.
    let news = walk.step("docker-compose start etcd1 etcd2").await?;
    walk.stand(&["node2", "node3", "node1"]).await?;
    let now = only(&news, &next, "I work with")?;
    assert!(now.token() > leads.token(), "{now:?} after {leads:?}");
    let all = walk.news()?;
    let leaders = all.iter().filter(|line| line.text.contains("I work with"));
    assert_eq!(leaders.count(), 1, "{all:?}");
    assert_eq!(Some(callers.reach(&next).await?), now.token());
    callers.judge();
    drop(callers);

    let step = walk.steps.next().unwrap_or_default();
    assert_eq!(step.command, "docker-compose down --volumes");
    walk.run(&step.command)?;
    assert_eq!(walk.run("docker-compose ps -a -q")?.trim(), "");
    let rest: Vec<Step> = walk.steps.by_ref().collect();
    assert!(rest.is_empty(), "README goes on: {rest:?}");
    walk.is_done = true;
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
