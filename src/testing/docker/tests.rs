//! When each step is stamped, and what a network is told: against an engine that takes its time.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::testing::history::Event;

/// How long the engine thinks; long enough to tell a stamp before a request from one after its answer.
const THINKS: Duration = Duration::from_millis(30);

/// A container with an alias and an address of its own, as Engine 20.10 shows it.
const INSPECTED: &str = r#"{"Id":"0123456789abcdef","Name":"/n1","NetworkSettings":{
    "Ports":{"2379/tcp":[{"HostIp":"0.0.0.0","HostPort":"4711"}],"2380/tcp":null},
    "Networks":{"back":{"IPAMConfig":{"IPv4Address":"10.9.0.7"},"Aliases":["db","0123456789ab"],
    "NetworkID":"f00","EndpointID":"f01","Gateway":"10.9.0.1","IPAddress":"10.9.0.7","IPPrefixLen":24}}}}"#;

/// A request, from its arrival to its answer.
#[derive(Debug, Clone)]
struct Call {
    request: String,
    body: String,
    arrived: Duration,
    answered: Duration,
}

struct Stage {
    container: Container,
    recorder: Recorder,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Stage {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let recorder = Recorder::boottime();
        let calls = Arc::new(Mutex::default());
        let (told, clock) = (Arc::clone(&calls), recorder.clone());
        // Ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (clock, told) = (clock.clone(), Arc::clone(&told));
                tokio::spawn(async move { serve(stream, &clock, &told).await });
            }
        });
        let docker = Docker::connect_with_http(&address, 5, bollard::API_DEFAULT_VERSION);
        let docker = docker.expect("a client");
        let container = Container::find_by(docker, "n1").await.expect("found");
        Self {
            container,
            recorder,
            calls,
        }
    }

    async fn recorded() -> Self {
        let stage = Self::new().await;
        let container = stage.container.recorded(&stage.recorder, "node-1");
        Self { container, ..stage }
    }

    async fn recorded_for_all() -> Self {
        let stage = Self::new().await;
        let container = stage.container.recorded_for_all(&stage.recorder);
        Self { container, ..stage }
    }

    fn events(&self) -> Vec<Event> {
        let history = self.recorder.history().expect("in memory");
        history.events().to_vec()
    }

    fn call(&self, path: &str) -> Call {
        let calls = self.calls.lock().expect("a lock");
        let mut found = calls.iter().filter(|call| call.request.contains(path));
        let call = found
            .next()
            .unwrap_or_else(|| panic!("no {path} in {calls:?}"));
        assert!(found.next().is_none(), "more than one {path}");
        call.clone()
    }
}

async fn serve(stream: TcpStream, recorder: &Recorder, calls: &Mutex<Vec<Call>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut request, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if request.is_empty() {
                request = line;
            } else if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.expect("a body");
        let arrived = recorder.now();
        tokio::time::sleep(THINKS).await;
        let (status, answer) = if request.contains("/json") {
            ("200 OK", INSPECTED)
        } else if request.contains("/wait") {
            ("200 OK", r#"{"StatusCode":137}"#)
        } else {
            ("204 No Content", "")
        };
        let answered = recorder.now();
        let body = String::from_utf8(body).expect("text");
        calls.lock().expect("a lock").push(Call {
            request,
            body,
            arrived,
            answered,
        });
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        let whole = format!("{head}{answer}");
        if stream.get_mut().write_all(whole.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_stop_is_stamped_after_it_and_before_it_goes_on() {
    let stage = Stage::recorded().await;
    stage.container.freeze().await.expect("frozen");
    stage.container.thaw().await.expect("thawed");
    let events = stage.events();
    let what: Vec<&What> = events.iter().map(|event| &event.what).collect();
    assert_eq!(what, [&What::Paused, &What::Resumed]);
    assert!(events.iter().all(|event| event.node == "node-1"));
    assert!(events[0].at >= stage.call("/pause").answered);
    assert!(events[1].at <= stage.call("/unpause").arrived);
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
    let events = stage.events();
    let name = "n1 cut from back".to_owned();
    assert_eq!(events[0].what, What::Fault { name: name.clone() });
    assert_eq!(events[1].what, What::Healed { name });
    assert_eq!((events.len(), &*events[1].node), (2, "node-1"));
    assert!(events[0].at <= stage.call("/disconnect").arrived);
    let connect = stage.call("/networks/back/connect");
    assert!(events[1].at >= connect.answered);

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
async fn what_hits_etcd_is_a_fault_for_everybody() {
    let stage = Stage::recorded_for_all().await;
    let container = &stage.container;
    container.freeze().await.expect("frozen");
    container.kill().await.expect("killed");
    container.start().await.expect("started");
    let told: Vec<String> = stage
        .events()
        .iter()
        .map(|event| format!("{}{}", event.node, event.what))
        .collect();
    assert_eq!(
        told,
        [
            "FAULT n1 frozen",
            "FAULT n1 down",
            "HEALED n1 frozen",
            "HEALED n1 down"
        ]
    );
}

#[tokio::test]
async fn a_port_is_where_this_machine_reaches_it() {
    let stage = Stage::new().await;
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
