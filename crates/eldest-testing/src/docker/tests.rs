//! Tests the stamp of each step, and the requests about networks, against a slow engine.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::time::Duration;

use super::*;
use crate::history::Event;

mod engine;
mod sweeps;

use engine::{Answer, Call, Engine, willing};

/// A container that is paused, as the engine shows it.
const FROZEN: &str =
    r#"{"Id":"0123456789abcdef","Name":"/n1","State":{"Status":"paused","Paused":true}}"#;

struct Stage {
    container: Container,
    recorder: Recorder,
    engine: Engine,
}

impl Stage {
    async fn new(answers: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) -> Self {
        let recorder = Recorder::boottime();
        let engine = Engine::start(&recorder, answers).await;
        let docker = engine.docker.clone();
        let container = Container::find_by(docker, "n1").await.expect("found");
        Self {
            container,
            recorder,
            engine,
        }
    }

    async fn recorded() -> Self {
        Self::recorded_by(willing).await
    }

    async fn recorded_by(answers: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) -> Self {
        let stage = Self::new(answers).await;
        let container = stage.container.recorded(&stage.recorder, "node-1");
        Self { container, ..stage }
    }

    async fn recorded_for_all(
        answers: impl Fn(&str, usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let stage = Self::new(answers).await;
        let container = stage.container.recorded_for_all(&stage.recorder);
        Self { container, ..stage }
    }

    fn events(&self) -> Vec<Event> {
        let history = self.recorder.history().expect("in memory");
        history.events().to_vec()
    }

    /// Returns the nodes and events in the order of their stamps.
    fn records(&self) -> Vec<String> {
        self.events()
            .iter()
            .map(|event| format!("{} {}", event.node, event.what))
            .collect()
    }

    fn call(&self, path: &str) -> Call {
        let calls = self.engine.calls(path);
        assert_eq!(calls.len(), 1, "{path}: {calls:?}");
        calls[0].clone()
    }
}

/// Answers as an engine whose container is frozen.
fn frozen(request: &str, before: usize) -> Answer {
    if request.contains("/json") {
        ("200 OK", FROZEN)
    } else {
        willing(request, before)
    }
}

#[tokio::test]
async fn a_stop_is_stamped_after_it_and_its_end_before_and_after() {
    let stage = Stage::recorded().await;
    stage.container.freeze().await.expect("frozen");
    stage.container.thaw().await.expect("thawed");
    assert_eq!(
        stage.records(),
        ["node-1 PAUSED", "node-1 RESUMED", "node-1 RESUMED"]
    );
    let at: Vec<Duration> = stage.events().iter().map(|event| event.at).collect();
    let (pause, unpause) = (stage.call("/pause"), stage.call("/unpause"));
    assert!(pause.answered <= at[0] && at[1] <= unpause.arrived && unpause.answered <= at[2]);
}

#[tokio::test]
async fn a_frozen_container_is_thawed_before_it_is_asked_to_end() {
    let stage = Stage::recorded_by(frozen).await;
    stage.container.stop(Duration::ZERO).await.expect("stopped");
    assert_eq!(
        stage.records(),
        ["node-1 RESUMED", "node-1 RESUMED", "node-1 KILLED"]
    );
    let (unpause, stop) = (stage.call("/unpause"), stage.call("/stop"));
    assert!(unpause.answered <= stop.arrived);
    let at: Vec<Duration> = stage.events().iter().map(|event| event.at).collect();
    assert!(at[0] <= unpause.arrived && unpause.answered <= at[1] && stop.answered <= at[2]);
}

#[tokio::test]
async fn a_frozen_container_that_is_killed_runs_no_more() {
    let stage = Stage::recorded_by(frozen).await;
    stage.container.kill().await.expect("killed");
    assert_eq!(stage.records(), ["node-1 KILLED"]);
    // An engine that does not wake the container before a kill leaves it half dead.
    assert!(stage.call("/kill").answered <= stage.call("/unpause").arrived);
}

#[tokio::test]
async fn refused_action_is_no_fault() {
    let refusing = |request: &str, before| {
        if request.starts_with("post ") {
            ("409 Conflict", r#"{"message":"no"}"#)
        } else {
            willing(request, before)
        }
    };
    for stage in [
        Stage::recorded_by(refusing).await,
        Stage::recorded_for_all(refusing).await,
    ] {
        let container = &stage.container;
        container.freeze().await.expect_err("refused");
        container.thaw().await.expect_err("refused");
        container.kill().await.expect_err("refused");
        container.stop(Duration::ZERO).await.expect_err("refused");
        container.cut("back").await.expect_err("refused");
        assert_eq!(stage.records(), [""; 0]);
    }
}

#[tokio::test]
async fn abandoned_action_may_have_been_a_fault() {
    let stage = Stage::recorded_for_all(willing).await;
    let kill = stage.container.kill();
    let given_up = tokio::time::timeout(Duration::from_millis(1), kill).await;
    assert!(given_up.is_err());
    assert_eq!(stage.records(), [" FAULT n1 down"]);
}

#[tokio::test]
async fn a_kill_is_stamped_once_the_container_is_dead() {
    let stage = Stage::recorded().await;
    stage.container.kill().await.expect("killed");
    stage.container.start().await.expect("started");
    let events = stage.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].what, What::Killed);
    assert!(events[0].at >= stage.call("/wait").answered);
    assert!(stage.call("/kill").request.contains("signal=sigkill"));
}

#[tokio::test]
async fn a_stop_is_stamped_once_the_container_has_ended() {
    let stage = Stage::recorded().await;
    let grace = Duration::from_millis(1_500);
    stage.container.stop(grace).await.expect("stopped");
    let stop = stage.call("/stop");
    assert!(stop.request.contains("t=2"));
    let events = stage.events();
    assert_eq!(events[0].what, What::Killed);
    assert!(events[0].at >= stop.answered);
}

#[tokio::test]
async fn a_cut_is_a_fault_from_before_it_until_after_its_end() {
    let stage = Stage::recorded().await;
    stage.container.cut("back").await.expect("cut");
    stage.container.heal().await.expect("healed");
    assert_eq!(
        stage.records(),
        [
            "node-1 FAULT n1 cut from back",
            "node-1 FAULT n1 cut from back",
            "node-1 HEALED n1 cut from back"
        ]
    );
    let events = stage.events();
    let disconnect = stage.call("/disconnect");
    assert!(events[0].at <= disconnect.arrived && disconnect.answered <= events[1].at);
    let connect = stage.call("/networks/back/connect");
    assert!(events[2].at >= connect.answered);

    let asked: serde_json::Value = serde_json::from_str(&connect.body).expect("JSON");
    let endpoint = &asked["EndpointConfig"];
    assert_eq!(endpoint["Aliases"], serde_json::json!(["db"]));
    assert_eq!(endpoint["IPAMConfig"]["IPv4Address"], "10.9.0.7");
    assert_eq!(
        endpoint.get("IPAddress"),
        None,
        "that is the engine's answer"
    );

    stage.container.heal().await.expect("nothing left to heal");
    stage.call("/networks/back/connect"); // still one
}

#[tokio::test]
async fn fault_of_etcd_hits_all_nodes() {
    let stage = Stage::recorded_for_all(willing).await;
    let container = &stage.container;
    container.freeze().await.expect("frozen");
    container.kill().await.expect("killed");
    container.start().await.expect("started");
    assert_eq!(
        stage.records(),
        [
            " FAULT n1 frozen",
            " FAULT n1 frozen",
            " FAULT n1 down",
            " FAULT n1 down",
            " HEALED n1 frozen",
            " HEALED n1 down"
        ]
    );
    let events = stage.events();
    assert!(stage.call("/wait").answered <= events[3].at, "surely dead");
}

#[tokio::test]
async fn a_port_is_where_this_machine_reaches_it() {
    let stage = Stage::new(willing).await;
    let address = stage.container.address(2379).await.expect("published");
    assert_eq!(address.to_string(), "127.0.0.1:4711");
    let error = stage.container.address(2380).await.expect_err("it is not");
    assert_eq!(
        error.to_string(),
        "container n1 (0123456789ab) does not publish port 2380 now"
    );
}

#[tokio::test]
async fn an_error_says_what_was_tried_on_which_container() {
    let stage = Stage::recorded().await;
    let error = stage.container.cut("front").await.expect_err("not there");
    assert_eq!(
        error.to_string(),
        r#"container n1 (0123456789ab) is not connected to front, but to ["back"]"#
    );
    assert_eq!(stage.events(), [], "nothing was cut");
}

#[test]
fn the_futures_may_be_spawned() {
    fn send<T: Send>(_: impl Fn(&'static Container) -> T) {}
    send(Container::freeze);
    send(Container::thaw);
    send(Container::kill);
    send(Container::start);
    send(Container::heal);
    send(Container::cut_all);
    send(|container| container.stop(Duration::ZERO));
    send(|container| container.cut("back"));
    send(|_| Container::find("n1"));
}
