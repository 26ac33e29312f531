//! Tests endpoints that are looked up, and those that follow etcd's list of members.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use tokio::net::{TcpListener as Listener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::access::{PASSWORD, with_users};
use super::*;
use crate::runtime::Service;

const KEY: &[u8] = b"ns/~";

/// The answers of DNS. Unknown names have no records, and address lookups of them get no answer.
#[derive(Default)]
struct Answers {
    addresses: BTreeMap<String, Vec<IpAddr>>,
    services: BTreeMap<String, Vec<Service>>,
    questions: Vec<String>,
}

#[derive(Default)]
struct Dns(Mutex<Answers>);

impl Dns {
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap()
    }

    fn addresses(&self, host: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|one| one.parse().unwrap()).collect();
        self.lock().addresses.insert(host.to_owned(), addresses);
    }

    fn env(self: &Arc<Self>) -> Scripted {
        let (of_hosts, of_services) = (Arc::clone(self), Arc::clone(self));
        let addresses = move |host: String| {
            let mut answers = of_hosts.lock();
            answers.questions.push(host.clone());
            let found = answers.addresses.get(&host).cloned();
            let missing = || io::Error::new(io::ErrorKind::NotFound, "no such host");
            std::future::ready(found.ok_or_else(missing)).boxed()
        };
        let services = move |name: String| {
            let mut answers = of_services.lock();
            answers.questions.push(name.clone());
            let found = answers.services.get(&name).cloned();
            std::future::ready(Ok(found.unwrap_or_default())).boxed()
        };
        Scripted {
            addresses: Box::new(addresses),
            services: Box::new(services),
            ..Scripted::real()
        }
    }

    fn pool(self: &Arc<Self>, endpoints: &[&str]) -> Arc<Pool> {
        pool_in(self.env(), endpoints, ConnectOptions::new(), TIMEOUT)
    }
}

/// Makes each address forward to its endpoint, all at one port.
async fn served(all: &[(&str, &Etcd)]) -> (u16, Vec<AbortOnDropHandle<()>>) {
    loop {
        let port = free_port();
        let bound = all.iter().map(|(at, _)| Listener::bind((*at, port)));
        let Ok(bound) = futures::future::try_join_all(bound).await else {
            continue;
        };
        let bound = bound.into_iter().zip(all);
        let serve = |(listener, (_, etcd)): (_, &(_, &Etcd))| {
            serve(listener, etcd.endpoint.replace("http://", ""))
        };
        let served = bound.map(serve).map(tokio::spawn);
        return (port, served.map(AbortOnDropHandle::new).collect());
    }
}

async fn serve(listener: Listener, to: String) {
    loop {
        let (mut from, _) = listener.accept().await.unwrap();
        let to = to.clone();
        tokio::spawn(async move {
            let mut to = TcpStream::connect(to).await?;
            tokio::io::copy_bidirectional(&mut from, &mut to).await
        });
    }
}

fn listed(pool: &Pool) -> Vec<String> {
    let places = pool.places(|places| places.all().to_vec());
    places.iter().map(|place| place.url().to_owned()).collect()
}

#[tokio::test]
async fn each_address_of_a_host_is_an_endpoint_and_lookups_repeat() {
    let etcd = Etcd::start().await;
    let all = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|at| (at, &etcd));
    let (port, _served) = served(&all).await;
    let at = |last: u8| format!("http://127.0.0.{last}:{port}");
    let dns = Arc::<Dns>::default();
    let name = format!("dns+http://etcd.test:{port}");
    let pool = dns.pool(&[&name]);
    assert_eq!(listed(&pool), [&*name], "nothing is known yet");
    let failure = pool.probe(KEY).await.unwrap_err();
    assert!(failure.message.contains("not looked up yet"), "{failure}");
    assert!(!pool.refresh(KEY).await, "it is tried again soon");
    let failure = pool.probe(KEY).await.unwrap_err();
    assert!(failure.message.contains("no such host"), "{failure}");

    dns.addresses("etcd.test", &["127.0.0.2", "127.0.0.3"]);
    assert!(pool.refresh(KEY).await);
    assert_eq!(listed(&pool), [at(2), at(3)]);
    pool.leave_unlisted(KEY).await;
    pool.probe(KEY).await.unwrap();
    // Another order makes no other list.
    let generation = pool.client(Lane::Data).await.unwrap().1;
    dns.addresses("etcd.test", &["127.0.0.3", "127.0.0.2"]);
    assert!(pool.refresh(KEY).await);
    assert_eq!(listed(&pool), [at(2), at(3)]);
    dns.addresses("etcd.test", &["127.0.0.4", "127.0.0.2"]);
    assert!(pool.refresh(KEY).await);
    assert_eq!(listed(&pool), [at(2), at(4)]);
    assert_eq!(pool.client(Lane::Data).await.unwrap().1, generation);

    // A failed lookup, and an empty answer, keep the list.
    dns.lock().addresses.clear();
    assert!(!pool.refresh(KEY).await);
    dns.addresses("etcd.test", &[]);
    assert!(!pool.refresh(KEY).await);
    assert_eq!(listed(&pool), [at(2), at(4)]);
    assert_eq!(pool.client(Lane::Data).await.unwrap().1, generation);
}

#[tokio::test]
async fn addresses_of_another_cluster_are_left_out() {
    let (etcd, other) = (Etcd::start().await, Etcd::start().await);
    let all = [
        ("127.0.0.2", &etcd),
        ("127.0.0.3", &etcd),
        ("127.0.0.4", &other),
    ];
    let (port, _served) = served(&all).await;
    let dns = Arc::<Dns>::default();
    dns.addresses("etcd.test", &["127.0.0.2"]);
    let pool = dns.pool(&[&format!("dns+http://etcd.test:{port}")]);
    pool.refresh(KEY).await;
    pool.leave_unlisted(KEY).await;
    pool.probe(KEY).await.unwrap();
    dns.addresses("etcd.test", &["127.0.0.4", "127.0.0.3", "127.0.0.2"]);
    pool.refresh(KEY).await;
    let good = [2, 3].map(|last| format!("http://127.0.0.{last}:{port}"));
    assert_eq!(listed(&pool), good);
    // Alone, this change has no effect.
    dns.addresses("etcd.test", &["127.0.0.4"]);
    assert!(!pool.refresh(KEY).await);
    assert_eq!(listed(&pool), good);
}

#[tokio::test]
async fn services_are_looked_up_like_etcd_clients_do_in_order_of_priority() {
    let etcd = Etcd::start().await;
    let port = etcd.endpoint.rsplit(':').next().unwrap().parse().unwrap();
    let service = |priority, host: &str, port| Service {
        priority,
        host: host.to_owned(),
        port,
    };
    let dns = Arc::<Dns>::default();
    let records = vec![
        service(20, "localhost", port),
        service(10, "127.0.0.1", port),
    ];
    let name = "_etcd-client._tcp.example.com".to_owned();
    dns.lock().services.insert(name.clone(), records.clone());
    let pool = dns.pool(&["srv://example.com"]);
    assert!(pool.refresh(KEY).await);
    assert_eq!(
        listed(&pool),
        [etcd.endpoint.clone(), format!("http://localhost:{port}")]
    );
    assert_eq!(
        dns.lock().questions.split_off(0),
        ["_etcd-client-ssl._tcp.example.com".to_owned(), name]
    );
    pool.leave_unlisted(KEY).await;
    pool.probe(KEY).await.unwrap();

    let name = "_etcd-client-blue._tcp.example.com".to_owned();
    dns.lock().services.insert(name, records);
    let endpoints = pool.checked(vec![Endpoint::new("srv://example.com/blue")]);
    let pool = kept_near(pool);
    let set = pool.set_endpoints(endpoints.unwrap(), KEY);
    soon("the other records are used", set)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(pool.size(), 2);
    let unknown = pool.checked(vec![Endpoint::new("srv://example.org")]);
    let failure = pool.set_endpoints(unknown.unwrap(), KEY).await.unwrap_err();
    let missing = "no SRV record _etcd-client-ssl._tcp.example.org";
    assert!(failure.message.contains(missing), "{failure}");
    assert_eq!(pool.size(), 2);
}

/// A session that began without TLS gets a list that demands it.
#[tokio::test]
async fn later_https_endpoint_stops_lookups_of_records_without_tls() {
    let etcd = Etcd::start().await;
    let dns = Arc::<Dns>::default();
    let records = vec![Service {
        priority: 1,
        host: "127.0.0.1".to_owned(),
        port: etcd.endpoint.rsplit(':').next().unwrap().parse().unwrap(),
    }];
    let plain = "_etcd-client._tcp.example.com".to_owned();
    dns.lock().services.insert(plain, records);
    let pool = dns.pool(&[&etcd.endpoint]);
    let list = ["https://127.0.0.1:1", "srv://example.com"];
    let list = pool.checked(list.iter().map(Endpoint::from).collect());
    let set = pool.set_endpoints(list.unwrap(), KEY);
    let _refused = soon("tried", set).await.unwrap_err();
    assert_eq!(dns.lock().questions, ["_etcd-client-ssl._tcp.example.com"]);
    assert_eq!(pool.size(), 1, "the list before");
}

/// Starts the background task of a session, which moves the lanes.
fn kept_near(pool: Arc<Pool>) -> Arc<Pool> {
    pool.keep_near(KEY.into(), tracing::Span::none());
    pool
}

/// In the library, a request that hangs at the resolver neither delays others nor the end of the session.
#[tokio::test]
async fn a_hanging_lookup_delays_nothing() {
    let etcd = Etcd::start().await;
    let env = Scripted {
        addresses: Box::new(|_| std::future::pending().boxed()),
        ..Scripted::real()
    };
    let endpoints = ["dns+http://hangs.test:1", &etcd.endpoint];
    let pool = pool_in(env, &endpoints, ConnectOptions::new(), TIMEOUT);
    let pool = kept_near(pool);
    let answered = async {
        while pool.probe(KEY).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let within = Duration::from_secs(2);
    tokio::time::timeout(within, answered).await.unwrap();
    let held = Arc::downgrade(&pool);
    pool.hang_up();
    drop(pool);
    let gone = async {
        while held.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(within, gone).await.unwrap();
}

fn following(endpoint: &str, options: ConnectOptions) -> Arc<Pool> {
    let pool = Pool::new(Arc::new(Scripted::real()), [endpoint], options, TIMEOUT);
    Arc::new(pool.unwrap().following_members(true))
}

#[tokio::test]
async fn a_member_url_replaces_another_name_of_that_member() {
    let etcd = Etcd::start().await;
    let other = etcd.two_endpoints()[1].clone();
    let pool = following(&other, ConnectOptions::new());
    assert!(pool.refresh(KEY).await);
    assert_eq!(listed(&pool), [&*etcd.endpoint]);
    pool.leave_unlisted(KEY).await;
    pool.probe(KEY).await.unwrap();
    assert!(pool.refresh(KEY).await);
    assert_eq!(listed(&pool), [&*etcd.endpoint]);
}

#[tokio::test]
async fn every_user_may_follow_the_members() {
    let (etcd, _root) = with_users().await;
    let other = etcd.two_endpoints()[1].clone();
    let user = ConnectOptions::new().with_user("me", PASSWORD);
    let pool = following(&other, user);
    assert!(pool.refresh(KEY).await);
    assert_eq!(listed(&pool), [&*etcd.endpoint]);
}

#[tokio::test]
async fn client_that_may_not_list_members_keeps_its_endpoints() {
    let (etcd, _root) = with_users().await;
    let pool = following(&etcd.two_endpoints()[1], ConnectOptions::new());
    let before = listed(&pool);
    assert!(pool.refresh(KEY).await, "it does not ask again soon");
    assert_eq!(listed(&pool), before);
    let troubles = pool.named(|named| named.troubles.clone());
    assert!(
        format!("{troubles:?}").contains("user name is empty"),
        "{troubles:?}"
    );
}

#[tokio::test]
async fn members_of_another_cluster_are_not_followed() {
    let etcd = Etcd::start().await;
    let pool = following(&etcd.endpoint, ConnectOptions::new());
    pool.probe(KEY).await.unwrap();
    pool.cluster.store(7, Ordering::Relaxed);
    assert!(!pool.refresh(KEY).await);
    assert_eq!(listed(&pool), [&*etcd.endpoint]);
    let troubles = pool.named(|named| named.troubles.clone());
    assert!(
        format!("{troubles:?}").contains("another cluster"),
        "{troubles:?}"
    );
}
