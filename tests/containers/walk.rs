//! README's walk through three data centres, with either generation of Compose: its commands are run as they stand
//! there, its lines are what is expected, and the front is called all the way.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use eldest::BoxError;
use eldest::etcd_client::{Client, GetOptions, SortOrder, SortTarget};
use eldest::testing::eventually;
use futures::FutureExt;

use crate::composed::{
    Composed, ETCD_PORT, ETCD_THAT_STAYS, Line, NODE_PORT, NODES, Said, WORKER_PORT, compose,
    since_boot,
};
use crate::front::{Asked, Callers, between_checks, now, sees_only};
use crate::lab::Result;
use crate::pulse::Pulse;
use crate::readme::{Step, alike, steps};

/// As docker-compose.yml sets it.
const TTL: Duration = Duration::from_secs(5);
/// How long a node waits for an answer of etcd, with that TTL.
const ANSWER: Duration = Duration::from_millis(300);
/// What a program has to wind up in: `eldest run`'s grace period and lead of that TTL.
const WIND_UP: Duration = Duration::from_millis(1250);
/// etcd looks for expired leases twice a second.
const EXPIRY: Duration = Duration::from_millis(500);
/// What a takeover may take beyond that: etcd's revocation, the news of it, a program's start.
const SLACK: Duration = Duration::from_secs(2);
/// Patience with containers, and with what they say.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at what was said.
const LOOK: Duration = Duration::from_millis(100);

const UP: &str = "docker-compose up -d";
const LOGS: &str = "docker-compose logs --no-color --no-log-prefix node1 node2 node3 | sort";
const RESIGN: &str = "curl -s -X POST -H 'Authorization: Bearer demo' http://$(docker-compose port node1 8470)/v1/elections/demo/resign";
/// Who only asks may ask again.
const ASKS: [&str; 3] = [
    "docker-compose logs",
    "docker-compose exec -T",
    "curl -s http:",
];
/// The keys of the election.
const PREFIX: &str = "eldest/demo/";
/// So many requests wait for a node that is frozen.
const WAITING: usize = 20;

/// A machine with other things to do can be too slow for README's walk; three times in a row it is not the machine.
const WALKS: usize = 3;

/// Something came later than README says: no fault of the election if the machine was slow.
#[derive(Debug)]
struct Late(String);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Late {}

/// A key of the election.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    node: String,
    create_revision: i64,
    lease: i64,
}

struct Walk {
    demo: Composed,
    steps: std::vec::IntoIter<Step>,
    pulse: Option<Pulse>,
    callers: Option<Callers>,
    /// When the last command was begun; what had been said before.
    begun: Duration,
    before: (usize, usize),
    /// What the last command printed.
    output: String,
    /// Its lease may well be lost.
    frozen: Option<String>,
    /// When the quorum was lost.
    without_quorum: Option<Duration>,
}

impl Walk {
    async fn new(program: &str, kind: &str) -> Result<Self> {
        Ok(Self {
            demo: Composed::new(program, kind).await?,
            steps: steps().into_iter(),
            pulse: None,
            callers: None,
            begun: now(),
            before: (0, 0),
            output: String::new(),
            frozen: None,
            without_quorum: None,
        })
    }

    fn part(&self, name: &str) -> &str {
        &self.demo.parts[name]
    }

    /// By whom a lease was lost that README's walk leaves alone.
    fn lost(&self, said: &Said) -> Vec<&'static str> {
        let quorum = self.without_quorum.is_none();
        let lost = said.lost.iter();
        let lost = lost.filter(|(node, gone)| {
            // Without a quorum that is as it should be, unless the lease was there no more when the quorum came back.
            (quorum || *gone) && self.frozen.as_deref() != Some(node)
        });
        lost.map(|(node, _)| *node).collect()
    }

    /// The lines since the last command.
    async fn news(&self) -> Result<Vec<Line>> {
        Ok(self.demo.said().await?.lines.split_off(self.before.0))
    }

    /// Takes README's next step, which must be that command, and waits for what README shows after it, be it its output
    /// or what workers say.
    async fn step(&mut self, command: &str) -> Result<Vec<Line>> {
        let step = self.steps.next().unwrap_or_default();
        assert_eq!(step.command, command, "README and its test differ");
        self.begun = now();
        if command != UP {
            let said = self.demo.said().await?;
            self.before = (said.lines.len(), self.lost(&said).len());
        }
        let asks = ASKS.iter().any(|start| command.starts_with(start));
        if !asks {
            self.output = self.demo.run(command)?;
        }
        if command == UP {
            self.meet().await?;
        }
        let lines = step.lines.iter().map(|line| alike(&self.demo.cast(line)));
        let wanted: Vec<String> = lines.collect();
        let mut missing = wanted.clone();
        let mut refused = None;
        let found = eventually(PATIENCE, "all lines", async || {
            if asks {
                match self.demo.run(command) {
                    Ok(output) => self.output = output,
                    Err(error) => {
                        refused = Some(error);
                        return None;
                    }
                }
            }
            let said = self.demo.said().await.ok()?;
            let news = said.lines[self.before.0..].to_vec();
            let texts = news.iter().map(|line| line.text.as_str());
            let texts: Vec<String> = texts.chain(self.output.lines()).map(alike).collect();
            missing.clone_from(&wanted);
            missing.retain(|line| !texts.contains(line));
            if missing.is_empty() || self.lost(&said).len() > self.before.1 {
                return Some(news);
            }
            tokio::time::sleep(LOOK).await;
            None
        });
        match (found.await, refused) {
            (Ok(news), _) if missing.is_empty() => Ok(news),
            (Err(error), Some(refused)) => Err(format!("{error}: {refused}").into()),
            (found, None | Some(_)) => {
                let found = found.err().map(|error| format!("{error}; "));
                let (found, output) = (found.unwrap_or_default(), self.output.trim());
                let what = format!("{command}: {found}missing {missing:?}, printed {output:?}");
                Err(Late(what).into())
            }
        }
    }

    /// After `up`: learns who leads, who is next and who is last, once all three stand.
    async fn meet(&mut self) -> Result {
        self.demo.find()?;
        let etcd = self.demo.port(ETCD_THAT_STAYS, ETCD_PORT)?;
        self.pulse = Some(Pulse::start(etcd).await?);
        let queue = eventually(PATIENCE, "three nodes are in line", async || {
            let queue = self.queue().await.ok();
            queue.filter(|queue| queue.len() == NODES.len())
        });
        let queue = queue.await?.into_iter().map(|key| key.node);
        self.demo.parts = NODES.into_iter().zip(queue).collect();
        Ok(())
    }

    /// The queue as etcd has it, the eldest first.
    async fn queue(&self) -> Result<Vec<Key>> {
        let etcd = self.demo.port(ETCD_THAT_STAYS, ETCD_PORT)?;
        let asked = tokio::time::timeout(Duration::from_secs(2), async {
            let mut client = Client::connect([format!("http://{etcd}")], None).await?;
            let options = GetOptions::new().with_prefix();
            let options = options.with_sort(SortTarget::Create, SortOrder::Ascend);
            client.get(PREFIX, Some(options)).await
        });
        let answer = asked.await??;
        let key = |kv: &eldest::etcd_client::KeyValue| -> Result<Key> {
            let value: serde_json::Value = serde_json::from_slice(kv.value())?;
            Ok(Key {
                node: value["identity"].as_str().unwrap_or_default().to_owned(),
                create_revision: kv.create_revision(),
                lease: kv.lease(),
            })
        };
        answer.kvs().iter().map(key).collect()
    }

    /// Waits until README's nodes, and nobody else, stand in that order, and the eldest is the leader with that token.
    async fn stand(&self, parts: &[&str], token: Option<i64>) -> Result<Vec<Key>> {
        let wanted: Vec<&str> = parts.iter().map(|part| self.part(part)).collect();
        let mut last = Vec::new();
        let found = eventually(PATIENCE, format!("the queue is {wanted:?}"), async || {
            last = self.queue().await.ok()?;
            let order = last.iter().map(|key| &*key.node);
            let is_so = order.eq(wanted.iter().copied());
            let is_lost = async || Some(self.lost(&self.demo.said().await.ok()?));
            if is_so || is_lost().await?.len() > self.before.1 {
                return Some(is_so);
            }
            tokio::time::sleep(LOOK).await;
            None
        });
        let found = found.await;
        let eldest = last.first().map(|key| key.create_revision);
        match found {
            Ok(true) if eldest == token => Ok(last),
            Ok(true) => Err(format!("{token:?} leads, but this is the queue: {last:?}").into()),
            Ok(false) => Err(format!("the queue is {last:?}, not {wanted:?}").into()),
            Err(error) => Err(format!("{error}; it is {last:?}").into()),
        }
    }

    fn callers(&self) -> &Callers {
        self.callers.as_ref().expect("callers")
    }

    /// Fails if there was no answer for longer than that; the callers' answers count from that number on.
    fn answered(&self, what: &str, from: usize, bound: Duration) -> Result {
        let gap = self.callers().longest_gap(from);
        println!("{what}: {gap:?} without an answer");
        in_time(&format!("{what}: an answer"), gap, bound)
    }

    /// What no slow machine excuses: answers of two leaders, tokens that fall.
    async fn judge(&self) -> Result {
        if let Some(callers) = &self.callers {
            callers.judge()?;
        }
        let said = self.demo.said().await?;
        let led = said.lines.iter().filter(|line| line.token().is_some());
        let led: Vec<&Line> = led.collect();
        match led
            .windows(2)
            .find(|pair| pair[1].token() <= pair[0].token())
        {
            Some(pair) => Err(format!("tokens fall: {pair:?}").into()),
            None => Ok(()),
        }
    }

    /// Whether etcd, or this machine, was too slow for the nodes since the last command: in which way.
    fn slow(&self) -> Option<String> {
        let pulse = self.pulse.as_ref()?;
        let (late, silent) = match self.without_quorum {
            None => (pulse.lateness(self.begun), pulse.silence(self.begun)),
            // What etcd does not answer then says nothing, unless it takes as long as README warns of.
            Some(cut) => {
                let back = pulse.answered(self.begun);
                let away = back.unwrap_or_else(now).saturating_sub(cut);
                let after = back.map(|back| pulse.silence(back)).unwrap_or_default();
                let away = if away > TTL * 2 { away } else { after };
                (pulse.lateness(cut), away)
            }
        };
        println!(
            "since the last command etcd was silent for {silent:?}, this test late by {late:?}"
        );
        (late.max(silent) > ANSWER)
            .then(|| format!("etcd was silent for {silent:?}, this test late by {late:?}"))
    }

    /// Whether this may be the machine's fault, which is told, rather than the election's.
    async fn excuse(&self, error: &BoxError) -> Result<Option<String>> {
        self.judge().await?;
        let lost = self.lost(&self.demo.said().await?);
        let lost = lost.get(self.before.1..).unwrap_or_default();
        if !lost.is_empty() {
            println!("a lease was lost by {lost:?}");
        }
        let may_be = !lost.is_empty() || error.is::<Late>();
        Ok(self.slow().filter(|_| may_be))
    }
}

/// Fails if something took longer than it may.
fn in_time(what: &str, took: Duration, bound: Duration) -> Result {
    if took <= bound {
        return Ok(());
    }
    Err(Late(format!("{what} took {took:?}, {bound:?} at most")).into())
}

/// Fails if that is not so.
fn hold(so: bool, what: impl FnOnce() -> String) -> Result {
    if so { Ok(()) } else { Err(what().into()) }
}

fn only<'a>(lines: &'a [Line], node: &str, words: &str) -> Result<&'a Line> {
    let says = |line: &&Line| line.node == node && line.text.contains(words);
    let found: Vec<&Line> = lines.iter().filter(says).collect();
    match found[..] {
        [line] => Ok(line),
        _ => Err(format!("{node} says {words:?} not once, but {found:?}").into()),
    }
}

/// Takes the walk, and again if the machine was too slow for it. Why it failed is the last thing said.
async fn walk(program: &str, kind: &str) -> Result {
    let mut again = 1..WALKS;
    loop {
        let mut walk = Walk::new(program, kind).await?;
        let taken = AssertUnwindSafe(take(&mut walk, kind)).catch_unwind();
        let error = match taken.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            // The message was printed.
            Err(_) => "a panic, told above".into(),
        };
        let excuse = walk.excuse(&error).await;
        println!("{}", walk.demo.logs());
        match excuse {
            Ok(Some(why)) if again.next().is_some() => println!("once more: {error} ({why})"),
            Ok(Some(why)) => {
                return Err(format!("{error}; {WALKS} walks, each too slow: {why}").into());
            }
            Ok(None) => return Err(error),
            Err(wrong) => return Err(format!("{wrong} (after {error})").into()),
        }
    }
}

async fn take(walk: &mut Walk, kind: &str) -> Result {
    let news = walk.step(UP).await?;
    let [first, next, last] = NODES.map(|part| walk.part(part).to_owned());
    let led = only(&news, &first, "I work with")?.clone();
    walk.step(LOGS).await?;
    hold(walk.output.contains(&led.text), || {
        format!("no {:?} in {:?}", led.text, walk.output)
    })?;
    walk.step("docker-compose exec -T node2 eldest status demo")
        .await?;
    walk.step("curl -s http://$(docker-compose port front 80)")
        .await?;
    let (front, stats) = (walk.demo.port("front", 80)?, walk.demo.port("front", 8404)?);
    walk.callers = Some(Callers::start(front));
    walk.callers().reach(&first).await?;
    sees_only(stats, &first).await?;
    let stood = walk.stand(&NODES, led.token()).await?;
    // Nobody led, and then the front was told at its next look.
    let told = between_checks() + SLACK;

    // The leader resigns: what its worker needs to wind up, never a TTL.
    let from = walk.callers().count();
    let news = walk.step(RESIGN).await?;
    let leads = only(&news, &next, "I work with")?.clone();
    walk.callers().reach(&next).await?;
    walk.answered(&format!("{kind}: hand-over"), from, WIND_UP + told)?;
    let stand = walk
        .stand(&["node2", "node3", "node1"], leads.token())
        .await?;
    // Nobody waited for a lease's end.
    let lease = |keys: &[Key]| {
        keys.iter()
            .find(|key| key.node == first)
            .map(|key| key.lease)
    };
    hold(lease(&stand) == lease(&stood), || {
        format!("{first} resigned, and has another lease")
    })?;
    sees_only(stats, &next).await?;

    // The leader dies: the next eldest leads, in time.
    let from = walk.callers().count();
    let news = walk.step("docker-compose kill node2").await?;
    let died = walk.demo.ended("node2")?;
    let leads = only(&news, &last, "I work with")?.clone();
    let took = leads.at.duration_since(died).unwrap_or_default();
    in_time(
        &format!("{last}'s lead after {next}'s death"),
        took,
        TTL + EXPIRY + SLACK,
    )?;
    walk.callers().reach(&last).await?;
    let crash = format!("{kind}: crash (TTL {TTL:?})");
    walk.answered(&crash, from, TTL + EXPIRY + told)?;
    walk.stand(&["node3", "node1"], leads.token()).await?;

    // It comes back, and does not preempt.
    walk.step("docker-compose start node2").await?;
    walk.stand(&["node3", "node1", "node2"], leads.token())
        .await?;
    let news = walk.news().await?;
    hold(news.is_empty(), || format!("{next} came back: {news:?}"))?;

    // The leader is frozen beyond its deadline. What it is asked meanwhile it has to answer when it wakes.
    let from = walk.callers().count();
    walk.frozen = Some(last.clone());
    let doors = [
        (walk.demo.port(&last, WORKER_PORT)?, "/"),
        (walk.demo.port(&last, NODE_PORT)?, "/leader"),
    ];
    let news = walk.step("docker-compose pause node3").await?;
    let leads = only(&news, &first, "I work with")?.clone();
    walk.callers().reach(&first).await?;
    let frozen = format!("{kind}: frozen (TTL {TTL:?})");
    walk.answered(&frozen, from, TTL + EXPIRY + told)?;
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
    walk.stand(&NODES, leads.token()).await?;
    sees_only(stats, &first).await?;
    walk.frozen = None;

    // One member less: nothing happens, for longer than a TTL, and the leader works on.
    walk.step("docker-compose stop etcd1").await?;
    let stayed = walk.callers().stay(TTL + Duration::from_secs(1)).await?;
    let news = walk.news().await?;
    hold(stayed && news.is_empty(), || {
        format!("one etcd less: {news:?}")
    })?;
    walk.stand(&NODES, leads.token()).await?;

    // Two members less: nobody leads before a lease can expire.
    walk.without_quorum = Some(now());
    let news = walk.step("docker-compose stop etcd2").await?;
    let cut = walk.demo.ended("etcd2")?;
    walk.without_quorum = Some(since_boot(cut));
    let over = only(&news, &first, "I was told to end")?;
    let took = over.at.duration_since(cut).unwrap_or_default();
    in_time(
        &format!("{first}'s worker's end without a quorum"),
        took,
        TTL,
    )?;
    walk.step("curl -s http://$(docker-compose port node3 8470)/leader")
        .await?;
    for node in [&first, &next] {
        let door = walk.demo.port(node, NODE_PORT)?;
        let what = format!("{node} says that its lease is lost");
        eventually(PATIENCE, what, async || {
            let asked = Asked::send(door, "/leader").await.ok()?;
            let answer = asked.answer().await.ok()?;
            let is_lost =
                answer.starts_with("HTTP/1.1 503") && answer.contains("\"session\":\"lost\"");
            is_lost.then_some(())
        })
        .await?;
    }
    // However slow anybody is: what was renewed before lasts for a TTL.
    let permitted = walk.callers().permitted_until();
    assert!(
        permitted <= since_boot(cut) + TTL,
        "{first} might act until {permitted:?}, etcd went at {:?}",
        since_boot(cut)
    );

    // Both are back: the leader had given its place up, and those who waited had kept theirs.
    let news = walk.step("docker-compose start etcd1 etcd2").await?;
    let leads = only(&news, &next, "I work with")?;
    walk.stand(&["node2", "node3", "node1"], leads.token())
        .await?;
    let all = walk.news().await?;
    let leaders = all.iter().filter(|line| line.token().is_some());
    hold(leaders.count() == 1, || {
        format!("more than one led: {all:?}")
    })?;
    walk.callers().reach(&next).await?;
    walk.judge().await?;
    walk.callers = None;

    let step = walk.steps.next().unwrap_or_default();
    assert_eq!(step.command, "docker-compose down --volumes");
    walk.pulse = None;
    walk.demo.run(&step.command)?;
    assert_eq!(walk.demo.run("docker-compose ps -a -q")?.trim(), "");
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
