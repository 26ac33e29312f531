//! Runs both sides over real sockets.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eldest_core::time::Time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::staged::{Staged, soon, spawn};
use crate::wire::{ASKING, HELLO, Hello};
use crate::{Alive, Answering, Asking, Event, Watched};

const LEASE: i64 = 0x1f2a;
/// Signs of life come every 0.2 s, and a silence of 0.5 s is suspect.
const LEAD: Duration = Duration::from_secs(2);

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// A session that answers.
struct Session {
    address: SocketAddr,
    state: Arc<Mutex<Option<Alive>>>,
    /// How often the state was read.
    read: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Session {
    fn start() -> Self {
        Self::start_at(loopback(), Arc::default(), 256)
    }

    fn start_at(address: SocketAddr, machine: Arc<Staged>, most: usize) -> Self {
        let answering = Answering::bind(address).unwrap().at_most(most);
        let address = answering.address().unwrap();
        let state = Arc::new(Mutex::new(Some(Alive {
            lease: LEASE,
            lead: LEAD,
            until: Time::MAX,
        })));
        let (count, read) = watch::channel(0);
        let shown = Arc::clone(&state);
        let task = spawn(async move {
            let alive = move || {
                count.send_modify(|count| *count += 1);
                *shown.lock().unwrap()
            };
            answering.run(&*machine, &alive).await;
        });
        Self {
            address,
            state,
            read,
            task,
        }
    }

    /// Waits for a few signs of life to this asker, which must trust the session in the end.
    async fn answers(&mut self, asking: &mut Asking) {
        let enough = *self.read.borrow() + 3;
        let answers = soon(self.read.wait_for(|count| *count >= enough));
        tokio::pin!(answers);
        let (mut answered, mut trusted) = (false, true);
        while !(answered && trusted) {
            tokio::select! {
                // The machine of the tests may be slow.
                event = asking.next() => trusted = event == Event::Heard(LEASE),
                read = &mut answers, if !answered => answered = read.is_ok(),
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Alive)) {
        change(self.state.lock().unwrap().as_mut().unwrap());
    }

    /// Connects and sends these bytes.
    async fn call(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns an asker that watches a session at that address.
fn asking(address: SocketAddr) -> Asking {
    let mut asking = Asking::new(Arc::new(Staged::default()));
    asking.watch(BTreeMap::from([watched(LEASE, address)]));
    asking
}

fn watched(lease: i64, address: SocketAddr) -> (i64, Watched) {
    let address = address.to_string();
    let lead = LEAD;
    (lease, Watched { address, lead })
}

/// Returns what the other side sends until it closes the connection.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    bytes
}

#[tokio::test]
async fn session_that_ends_is_suspected_and_after_its_return_trusted() {
    let mut session = Session::start();
    let mut asking = asking(session.address);
    session.answers(&mut asking).await;
    session.task.abort();
    assert_eq!(soon(asking.next()).await, Event::Silent(LEASE));
    let mut session = Session::start_at(session.address, Arc::default(), 256);
    assert_eq!(soon(asking.next()).await, Event::Heard(LEASE));
    session.answers(&mut asking).await;
}

#[tokio::test]
async fn port_that_nobody_serves_is_suspected() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(soon(asking(address).next()).await, Event::Silent(LEASE));
}

#[tokio::test]
async fn process_that_accepts_and_says_nothing_is_suspected() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let mut asking = asking(listener.local_addr().unwrap());
    assert_eq!(soon(asking.next()).await, Event::Silent(LEASE));
}

#[tokio::test]
async fn program_with_another_protocol_is_suspected_and_the_connection_closed() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let mut asking = asking(listener.local_addr().unwrap());
    let other = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = [0; HELLO];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(hello, Hello::encode(LEASE));
        stream.write_all(b"HTTP/1.1 400\r\n").await.unwrap();
        rest(&mut stream).await
    };
    let (event, rest) = tokio::join!(soon(asking.next()), other);
    assert_eq!((event, rest), (Event::Silent(LEASE), vec![]));
}

#[tokio::test]
async fn session_whose_clean_reads_stop_is_suspected_though_its_port_lives() {
    let mut session = Session::start();
    let mut asking = asking(session.address);
    session.answers(&mut asking).await;
    session.change(|alive| alive.until = Time::ZERO);
    assert_eq!(soon(asking.next()).await, Event::Silent(LEASE));
    session.change(|alive| alive.until = Time::MAX);
    assert_eq!(soon(asking.next()).await, Event::Heard(LEASE));
}

#[tokio::test]
async fn session_with_another_lease_or_none_is_suspected() {
    for other in [Some(LEASE + 1), None] {
        let mut session = Session::start();
        let mut asking = asking(session.address);
        session.answers(&mut asking).await;
        match other {
            Some(lease) => session.change(|alive| alive.lease = lease),
            None => *session.state.lock().unwrap() = None,
        }
        assert_eq!(soon(asking.next()).await, Event::Silent(LEASE));
    }
}

#[tokio::test]
async fn connection_lasts_as_long_as_its_session_is_watched() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut asking = asking(address);
    let (mut stream, _) = tokio::select! {
        accepted = soon(listener.accept()) => accepted.unwrap(),
        event = asking.next() => panic!("{event:?}"),
    };
    stream.write_all(&[1]).await.unwrap();
    let nobody = TcpListener::bind(loopback()).await.unwrap();
    let gone = nobody.local_addr().unwrap();
    drop(nobody);
    asking.watch([watched(LEASE, address), watched(2, gone)].into());
    assert_eq!(soon(asking.next()).await, Event::Silent(2));
    let mut hello = [0; HELLO + 1];
    assert_eq!(stream.try_read(&mut hello).unwrap(), HELLO);
    let kept = stream.try_read(&mut hello).unwrap_err();
    assert_eq!(kept.kind(), std::io::ErrorKind::WouldBlock);
    asking.watch(BTreeMap::new());
    tokio::select! {
        event = asking.next() => panic!("{event:?}"),
        rest = rest(&mut stream) => assert_eq!(rest, []),
    }
}

#[tokio::test]
async fn session_that_is_watched_no_longer_has_no_events() {
    // The system refuses this address at once, so the first poll makes both events.
    let nowhere = SocketAddr::from((Ipv4Addr::new(224, 0, 0, 1), 1));
    let mut asking = Asking::new(Arc::new(Staged::default()));
    asking.watch([watched(1, nowhere), watched(2, nowhere)].into());
    soon(asking.next()).await;
    asking.watch([watched(3, nowhere)].into());
    assert_eq!(soon(asking.next()).await, Event::Silent(3));
}

#[tokio::test]
async fn asker_says_from_time_to_time_that_it_asks() {
    let machine = Arc::new(Staged::default());
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let mut asking = Asking::new(Arc::<Staged>::clone(&machine));
    let address = listener.local_addr().unwrap();
    asking.watch(BTreeMap::from([watched(LEASE, address)]));
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; HELLO]).await.unwrap();
        machine.put_forward(Duration::from_secs(5));
        stream.write_all(&[1]).await.unwrap();
        stream.read_u8().await.unwrap()
    };
    tokio::select! {
        event = asking.next() => panic!("{event:?}"),
        said = soon(answer) => assert_eq!(said, ASKING),
    }
}

#[tokio::test]
async fn asker_that_says_nothing_for_long_makes_room() {
    let machine = Arc::new(Staged::default());
    let session = Session::start_at(loopback(), Arc::clone(&machine), 1);
    let mut stream = session.call(&Hello::encode(LEASE)).await;
    assert_eq!(soon(stream.read_u8()).await.unwrap(), 1);
    for _ in 0..2 {
        machine.put_forward(Duration::from_secs(10));
        stream.write_all(&[ASKING]).await.unwrap();
        let mut signs = [0; 3];
        soon(stream.read_exact(&mut signs)).await.unwrap();
        assert_eq!(signs, [1; 3]);
    }
    machine.put_forward(Duration::from_secs(16));
    let rest = rest(&mut stream).await;
    assert_eq!(rest.last(), Some(&3), "{rest:?}");
}

#[tokio::test]
async fn connection_with_half_a_hello_or_rubbish_is_closed() {
    let session = Session::start();
    let hello = Hello::encode(LEASE);
    for bytes in [&hello[..7], b"GET / HTTP/1.1\r\n\r\n", b""] {
        let mut stream = session.call(bytes).await;
        assert_eq!(rest(&mut stream).await, [], "{bytes:?}");
    }
    let mut stream = session.call(&[&hello[..], &[ASKING, 7]].concat()).await;
    assert!(rest(&mut stream).await.iter().all(|reply| *reply == 1));
}

#[tokio::test]
async fn asker_of_another_version_or_lease_receives_the_reason() {
    let session = Session::start();
    let mut newer = Hello::encode(LEASE);
    newer[6] += 1;
    let mut stream = session.call(&newer).await;
    assert_eq!(rest(&mut stream).await, [4]);
    let mut stream = session.call(&Hello::encode(LEASE + 1)).await;
    assert_eq!(rest(&mut stream).await, [2]);
}

#[tokio::test]
async fn hundred_askers_are_answered_and_the_next_one_is_refused_until_one_leaves() {
    let session = Session::start_at(loopback(), Arc::default(), 100);
    let mut askers = Vec::new();
    for _ in 0..100 {
        let mut stream = session.call(&Hello::encode(LEASE)).await;
        assert_eq!(soon(stream.read_u8()).await.unwrap(), 1);
        askers.push(stream);
    }
    let mut refused = session.call(&Hello::encode(LEASE)).await;
    assert_eq!(rest(&mut refused).await, [3]);
    for stream in &mut askers {
        assert_eq!(soon(stream.read_u8()).await.unwrap(), 1);
    }
    askers.pop();
    let freed = async {
        loop {
            let mut stream = session.call(&Hello::encode(LEASE)).await;
            if stream.read_u8().await.unwrap() == 1 {
                break;
            }
        }
    };
    soon(freed).await;
}

#[tokio::test]
async fn oldest_connection_without_a_hello_makes_room_for_another() {
    let machine = Arc::new(Staged::without_timers());
    let session = Session::start_at(loopback(), machine, 256);
    let (mut silent, mut askers) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        silent.push(session.call(b"").await);
    }
    // Connections without a hello take no room from the others.
    for _ in 0..16 {
        let mut stream = session.call(&Hello::encode(LEASE)).await;
        assert_eq!(soon(stream.read_u8()).await.unwrap(), 1);
        askers.push(stream);
    }
    for _ in 0..10 {
        silent.push(session.call(b"").await);
    }
    for stream in &mut silent[..4] {
        assert_eq!(rest(stream).await, []);
    }
    // The others are open still.
    let mut last = silent.pop().unwrap();
    last.write_all(&Hello::encode(LEASE)).await.unwrap();
    assert_eq!(soon(last.read_u8()).await.unwrap(), 1);
    for stream in &silent[4..] {
        let open = stream.try_read(&mut [0; 1]).unwrap_err();
        assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
    }
}
