//! Carries packets from one data centre to another: delays them, loses some of them, and keeps their order.
//!
//! Loss affects whole packets, not bytes, so that TCP reacts as it does over a long distance: it sends again, later and
//! slower. Packets keep their order because long routes usually keep it, so jitter alone causes no retransmission.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::Result;
use crate::site::Site;

/// Larger than any packet of a device with the usual MTU.
const PACKET: usize = 2048;
/// The number of packets in flight in one direction; further ones are lost, as in any router.
const QUEUE: usize = 10_000;
/// The port at which etcd serves clients when it has an address of its own.
pub(crate) const CLIENTS: u16 = 2379;
/// The network of all sites.
const NETWORK: [u8; 3] = [10, 77, 0];
/// The last octet of the observer's address.
const OBSERVER: u8 = 254;

/// Delay and loss of packets between two sites, in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Way {
    /// The delay of a packet.
    pub(crate) delay: Duration,
    /// The deviation from the delay, up or down.
    pub(crate) jitter: Duration,
    /// The share of packets that are lost, from 0 to 1.
    pub(crate) loss: f64,
}

/// Sites, and the links between them. The last site is this process's own.
pub(crate) struct Wire {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    sites: Vec<Site>,
    /// The links, by source and destination.
    ways: Vec<Vec<Way>>,
    /// The site that is cut from the others, but not from the observer.
    cut: RwLock<Option<usize>>,
    carried: AtomicU64,
    lost: AtomicU64,
}

struct Packet {
    bytes: Vec<u8>,
    arrives: Instant,
}

/// Counts of the packets between data centres.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    pub(crate) carried: u64,
    pub(crate) lost: u64,
    /// The TCP segments that were sent again, as the kernel counts them.
    pub(crate) retransmitted: u64,
}

impl Wire {
    /// Starts the sites. Call it in a runtime whose threads are in a namespace of their own. The links between all
    /// sites but this one are `way`; the observer's links have no delay.
    ///
    /// # Errors
    ///
    /// As for [`apart`](crate::site::apart).
    pub(crate) fn start(sites: usize, way: Way, seed: u64) -> Result<Self> {
        let [a, b, c] = NETWORK;
        let address = |last| Ipv4Addr::new(a, b, c, last);
        let mut all = Vec::new();
        for number in 1..=sites {
            all.push(Site::elsewhere(address(number as u8))?);
        }
        all.push(Site::here(address(OBSERVER))?);
        let between = |from, to| {
            let far = from != to && from < sites && to < sites;
            if far { way } else { Way::default() }
        };
        let row = |from| (0..=sites).map(|to| between(from, to)).collect();
        let shared = Arc::new(Shared {
            sites: all,
            ways: (0..=sites).map(row).collect(),
            cut: RwLock::default(),
            carried: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let mut tasks = JoinSet::new();
        let mut random = Rng::with_seed(seed);
        for from in 0..=sites {
            let mut ways = Vec::new();
            for to in 0..=sites {
                let (entrance, exit) = mpsc::channel(QUEUE);
                ways.push(entrance);
                tasks.spawn(Arc::clone(&shared).delivers(to, exit));
            }
            tasks.spawn(Arc::clone(&shared).takes(from, ways, random.fork()));
        }
        Ok(Self {
            shared,
            _tasks: tasks,
        })
    }

    /// Returns all sites but this process's own.
    pub(crate) fn sites(&self) -> &[Site] {
        let sites = &self.shared.sites;
        &sites[..sites.len() - 1]
    }

    /// Loses all packets from and to that site from now on.
    pub(crate) fn cut(&self, site: usize) {
        *self
            .shared
            .cut
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(site);
    }

    pub(crate) fn heal(&self) {
        *self
            .shared
            .cut
            .write()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn traffic(&self) -> Result<Traffic> {
        let mut retransmitted = 0;
        for site in self.sites() {
            retransmitted += site.inside(retransmissions)?;
        }
        Ok(Traffic {
            carried: self.shared.carried.load(Ordering::Relaxed),
            lost: self.shared.lost.load(Ordering::Relaxed),
            retransmitted,
        })
    }

    /// Returns the median time that a connection from the first site to the second takes.
    pub(crate) fn round_trip(&self, from: usize, to: usize, port: u16) -> Result<Duration> {
        const TRIES: usize = 5;
        let to = SocketAddr::from((self.shared.sites[to].address, port));
        self.shared.sites[from].inside(|| {
            let connects = || {
                let began = std::time::Instant::now();
                TcpStream::connect_timeout(&to, Duration::from_secs(5)).map(|_| began.elapsed())
            };
            let mut times: Vec<Duration> = (0..TRIES).filter_map(|_| connects().ok()).collect();
            times.sort_unstable();
            let median = times.get(times.len() / 2).copied();
            median.ok_or_else(|| format!("{to} does not answer").into())
        })
    }
}

impl Shared {
    async fn takes(self: Arc<Self>, from: usize, ways: Vec<mpsc::Sender<Packet>>, mut random: Rng) {
        let mut packet = vec![0; PACKET];
        while let Ok(length) = self.sites[from].leaves(&mut packet).await {
            let bytes = &packet[..length];
            let Some(to) = destination(bytes).and_then(|address| self.at(address)) else {
                continue;
            };
            if self.is_cut(from, to) {
                continue;
            }
            let way = self.ways[from][to];
            if random.f64() < way.loss {
                self.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let earliest = way.delay.saturating_sub(way.jitter);
            let late = earliest + (way.jitter * 2).mul_f64(random.f64());
            let packet = Packet {
                bytes: bytes.to_vec(),
                arrives: Instant::now() + late,
            };
            let counter = match ways[to].try_send(packet) {
                Ok(()) => &self.carried,
                Err(_) => &self.lost,
            };
            // Traffic of the observer does not count.
            if self.is_far(from) && self.is_far(to) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Delivers packets one after the other, so that none overtakes another.
    async fn delivers(self: Arc<Self>, to: usize, mut exit: mpsc::Receiver<Packet>) {
        while let Some(packet) = exit.recv().await {
            sleep_until(packet.arrives).await;
            self.sites[to].arrives(&packet.bytes).await;
        }
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        let cut = *self.cut.read().unwrap_or_else(PoisonError::into_inner);
        let hit = cut.is_some_and(|cut| (from == cut) != (to == cut));
        hit && self.is_far(from) && self.is_far(to)
    }

    fn is_far(&self, site: usize) -> bool {
        site + 1 < self.sites.len()
    }

    fn at(&self, address: Ipv4Addr) -> Option<usize> {
        self.sites.iter().position(|site| site.address == address)
    }
}

/// Returns the destination of an IPv4 packet; `None` for other packets, such as those by which a new device finds its
/// neighbours.
fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let is_ipv4 = packet.first()? >> 4 == 4;
    let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    is_ipv4.then(|| address.into())
}

/// Returns how many segments TCP sent again in this thread's namespace.
fn retransmissions() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp")?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next(), lines.next());
    let mut pairs = names.iter().zip(&values).flat_map(|(names, values)| {
        let values = values.split(' ');
        names.split(' ').zip(values)
    });
    let found = pairs.find(|(name, _)| *name == "RetransSegs");
    let (_, value) = found.ok_or("the kernel does not say what TCP sent again")?;
    Ok(value.parse()?)
}

#[cfg(test)]
mod tests {
    use tokio::net::UdpSocket;
    use tokio::time::timeout;

    use super::*;
    use crate::site::apart;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Runs the test in a namespace of its own, with a runtime like the harness's.
    fn there(test: impl AsyncFnOnce() -> Result + Send) -> Result {
        apart(|| {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.enable_all().build()?.block_on(test())
        })
    }

    /// Opens a socket in a site.
    fn listener(site: &Site) -> Result<std::net::TcpListener> {
        site.inside(|| Ok(std::net::TcpListener::bind((site.address, CLIENTS))?))
    }

    #[test]
    fn a_round_trip_takes_twice_the_delay_and_none_for_an_observer() -> Result {
        there(async || {
            let delay = Duration::from_millis(60);
            let way = Way {
                delay,
                ..Way::default()
            };
            let wire = Wire::start(2, way, 1)?;
            let _listener = listener(&wire.sites()[1])?;
            assert!(wire.round_trip(0, 1, CLIENTS)? >= delay * 2);
            assert!(wire.round_trip(2, 1, CLIENTS)? < delay);
            Ok(())
        })
    }

    #[test]
    fn lost_packets_are_sent_again_and_none_is_lost_without_loss() -> Result {
        use std::io::{Read, Write};
        for (loss, jitter) in [(0.0, Duration::from_millis(4)), (0.2, Duration::ZERO)] {
            there(async || {
                let delay = Duration::from_millis(5);
                let way = Way {
                    delay,
                    jitter,
                    loss,
                };
                let wire = Wire::start(2, way, 1)?;
                let (a, b) = (&wire.sites()[0], &wire.sites()[1]);
                let listener = listener(b)?;
                let sent = vec![7; 100_000];
                let to = (b.address, CLIENTS);
                let mut far = a.inside(|| Ok(TcpStream::connect(to)?))?;
                let received = std::thread::spawn(move || {
                    let mut received = Vec::new();
                    let (mut near, _) = listener.accept()?;
                    near.set_read_timeout(Some(PATIENCE))?;
                    near.read_to_end(&mut received).map(|_| received)
                });
                far.set_write_timeout(Some(PATIENCE))?;
                far.write_all(&sent)?;
                drop(far);
                assert!(
                    received.join().expect("no panic")? == sent,
                    "bytes are missing"
                );
                let traffic = wire.traffic()?;
                assert!(traffic.carried > 0);
                assert_eq!(traffic.lost > 0, loss > 0.0, "{traffic:?}");
                // Without loss, a busy machine may send segments again, too.
                assert!(traffic.retransmitted > 0 || loss <= 0.0, "{traffic:?}");
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn with_jitter_packets_come_in_their_order() -> Result {
        there(async || {
            // Few enough for the buffer of the receiving socket.
            const PACKETS: u16 = 100;
            let way = Way {
                delay: Duration::from_millis(20),
                jitter: Duration::from_millis(20),
                loss: 0.0,
            };
            let wire = Wire::start(2, way, 1)?;
            let socket = |site: &Site| {
                site.inside(|| {
                    let socket = std::net::UdpSocket::bind((site.address, CLIENTS))?;
                    socket.set_nonblocking(true)?;
                    Ok(socket)
                })
            };
            let from = UdpSocket::from_std(socket(&wire.sites()[0])?)?;
            let to = UdpSocket::from_std(socket(&wire.sites()[1])?)?;
            for number in 0..PACKETS {
                from.send_to(&number.to_be_bytes(), to.local_addr()?)
                    .await?;
            }
            for number in 0..PACKETS {
                let mut packet = [0; 2];
                timeout(PATIENCE, to.recv(&mut packet)).await??;
                assert_eq!(u16::from_be_bytes(packet), number);
            }
            Ok(())
        })
    }
}
