//! Imitates a Docker Engine that answers from a script after a delay and records every request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::Docker;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::history::Recorder;

/// How long the engine waits before it answers; long enough to distinguish a stamp before a request from one after its
/// answer.
const THINKS: Duration = Duration::from_millis(30);

/// A container with an alias and an address of its own, as Engine 20.10 shows it.
const INSPECTED: &str = r#"{"Id":"0123456789abcdef","Name":"/n1","NetworkSettings":{
    "Ports":{"2379/tcp":[{"HostIp":"0.0.0.0","HostPort":"4711"}],"2380/tcp":null},
    "Networks":{"back":{"IPAMConfig":{"IPv4Address":"10.9.0.7"},"Aliases":["db","0123456789ab"],
    "NetworkID":"f00","EndpointID":"f01","Gateway":"10.9.0.1","IPAddress":"10.9.0.7","IPPrefixLen":24}}}}"#;

/// A request, from its arrival to its answer.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) request: String,
    pub(super) body: String,
    pub(super) arrived: Duration,
    pub(super) answered: Duration,
}

/// Status and body.
pub(super) type Answer = (&'static str, &'static str);

pub(super) const DONE: Answer = ("204 No Content", "");

pub(super) struct Engine {
    pub(super) docker: Docker,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// The answer to each request, chosen by the request in lower case and by how often it came before.
type Script = dyn Fn(&str, usize) -> Answer + Send + Sync;

impl Engine {
    pub(super) async fn start(
        clock: &Recorder,
        answers: impl Fn(&str, usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let calls = Arc::new(Mutex::default());
        let answers: Arc<Script> = Arc::new(answers);
        let (log, clock) = (Arc::clone(&calls), clock.clone());
        // The task ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (clock, log, answers) = (clock.clone(), Arc::clone(&log), Arc::clone(&answers));
                tokio::spawn(async move { serve(stream, &clock, &log, &*answers).await });
            }
        });
        let docker = Docker::connect_with_http(&address, 5, bollard::API_DEFAULT_VERSION);
        let docker = docker.expect("a client");
        Self { docker, calls }
    }

    pub(super) fn calls(&self, path: &str) -> Vec<Call> {
        let calls = self.calls.lock().expect("a lock");
        let found = calls.iter().filter(|call| call.request.contains(path));
        found.cloned().collect()
    }
}

/// Answers as an engine that has one container, and accepts every request.
pub(super) fn willing(request: &str, _: usize) -> Answer {
    if request.contains("/json") {
        ("200 OK", INSPECTED)
    } else if request.contains("/wait") {
        ("200 OK", r#"{"StatusCode":137}"#)
    } else {
        DONE
    }
}

async fn serve(stream: TcpStream, recorder: &Recorder, calls: &Mutex<Vec<Call>>, answers: &Script) {
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
        let before = {
            let calls = calls.lock().expect("a lock");
            calls.iter().filter(|call| call.request == request).count()
        };
        let (status, answer) = answers(&request, before);
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
