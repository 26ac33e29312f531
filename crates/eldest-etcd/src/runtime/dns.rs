//! Looks up names: addresses by the system's resolver, and SRV records in DNS.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};

#[cfg(feature = "srv")]
use domain::{
    base::iana::{Rcode, Rtype},
    base::name::Name,
    rdata::Srv,
    resolv::stub::{StubResolver, conf::ResolvConf},
};

/// The place of a service, from an SRV record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::exhaustive_structs,
    reason = "for crates that pin the exact version"
)]
pub struct Service {
    /// The priority; lower values come first.
    pub priority: u16,
    /// The host's name, without a final dot.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Returns the addresses of the host, each once. Blocks.
pub(super) fn addresses(host: &str) -> io::Result<Vec<IpAddr>> {
    let mut all = Vec::new();
    for address in (host, 0).to_socket_addrs()? {
        if !all.contains(&address.ip()) {
            all.push(address.ip());
        }
    }
    Ok(all)
}

/// Returns the SRV records of the name, or none if there is no such name. The resolver lives for this one question, so
/// that it uses the system's present configuration, and leaves no task behind.
#[cfg(feature = "srv")]
pub(super) async fn services(name: &str) -> io::Result<Vec<Service>> {
    look_up(ResolvConf::default(), name).await
}

/// Looks up the name as it is, and then below each domain of the search list, until there are records.
#[cfg(feature = "srv")]
async fn look_up(config: ResolvConf, name: &str) -> io::Result<Vec<Service>> {
    let mut domains = vec![String::new()];
    if !name.ends_with('.') {
        let search = config.options.search.as_slice().iter();
        let search = search.filter(|domain| !domain.is_root());
        domains.extend(search.map(|domain| format!(".{domain}")));
    }
    let resolver = StubResolver::from_conf(config);
    for domain in domains {
        let found = records(&resolver, &format!("{name}{domain}")).await?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

#[cfg(feature = "srv")]
async fn records(resolver: &StubResolver, name: &str) -> io::Result<Vec<Service>> {
    let name: Name<Vec<u8>> = name.parse().map_err(io::Error::other)?;
    let answer = resolver.query((name, Rtype::SRV)).await?;
    match answer.header().rcode() {
        Rcode::NOERROR => {}
        Rcode::NXDOMAIN => return Ok(Vec::new()),
        refused => return Err(io::Error::other(format!("the name server says {refused}"))),
    }
    let records = answer.answer().map_err(io::Error::other)?;
    let mut found = Vec::new();
    for record in records.limit_to_in::<Srv<_>>() {
        let record = record.map_err(io::Error::other)?.into_data();
        // The target `.` means that there is no such service.
        if !record.target().is_root() {
            found.push(Service {
                priority: record.priority(),
                host: record.target().to_string(),
                port: record.port(),
            });
        }
    }
    Ok(found)
}

#[cfg(all(test, feature = "srv"))]
#[allow(clippy::disallowed_methods)] // tests run in real time
mod tests {
    use std::net::Ipv4Addr;

    use domain::resolv::stub::conf::{SearchSuffix, ServerConf, Transport};
    use tokio::net::UdpSocket;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    const NO_SUCH_NAME: u8 = 3;
    const REFUSED: u8 = 5;

    /// Encodes a name as DNS does.
    fn written(name: &str) -> Vec<u8> {
        let labels = name.split_terminator('.');
        let labels = labels.flat_map(|one| [&[one.len() as u8], one.as_bytes()].concat());
        labels.chain([0]).collect()
    }

    fn answer(question: &[u8], code: u8, records: &[(u16, u16, &str)]) -> Vec<u8> {
        let name = question[12..].iter().position(|byte| *byte == 0).unwrap();
        let mut answer = question[..2].to_vec();
        answer.extend([0x81, 0x80 | code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
        answer.extend(&question[12..12 + name + 5]);
        for (priority, port, host) in records {
            let host = written(host);
            // The name of the question, type SRV, class internet, and a TTL of one minute.
            answer.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60]);
            answer.extend((host.len() as u16 + 6).to_be_bytes());
            for number in [*priority, 0, *port] {
                answer.extend(number.to_be_bytes());
            }
            answer.extend(host);
        }
        answer
    }

    /// Looks up a name at a name server that gives this answer for `known`, and reports that every other name does not
    /// exist.
    async fn served(
        known: &str,
        code: u8,
        records: &'static [(u16, u16, &'static str)],
    ) -> io::Result<Vec<Service>> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = socket.local_addr().unwrap();
        let known = written(known);
        let server = tokio::spawn(async move {
            let mut question = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut question).await.unwrap();
                let question = &question[..length];
                let answer = if question[12..].starts_with(&known) {
                    answer(question, code, records)
                } else {
                    answer(question, NO_SUCH_NAME, &[])
                };
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        let _server = AbortOnDropHandle::new(server);
        let mut config = ResolvConf::new();
        config.servers = vec![ServerConf::new(at, Transport::UdpTcp)];
        config.options.search = "example.com".parse::<SearchSuffix>().unwrap().into();
        look_up(config, "_etcd-client._tcp.cluster").await
    }

    const AS_IT_IS: &str = "_etcd-client._tcp.cluster";

    #[tokio::test]
    async fn services_are_read_from_the_name_server_s_answer() {
        let found = served(
            AS_IT_IS,
            0,
            &[(20, 2379, "a.example.com"), (10, 1, "b.example.com")],
        )
        .await;
        let service = |priority, host: &str, port| Service {
            priority,
            host: host.to_owned(),
            port,
        };
        let expected = [
            service(20, "a.example.com", 2379),
            service(10, "b.example.com", 1),
        ];
        assert_eq!(found.unwrap(), expected);
        // The root as target means that there is no such service.
        assert_eq!(served(AS_IT_IS, 0, &[(0, 0, "")]).await.unwrap(), []);
    }

    #[tokio::test]
    async fn names_are_also_looked_up_below_the_search_domains() {
        let below = "_etcd-client._tcp.cluster.example.com";
        let found = served(below, 0, &[(10, 2379, "a.example.com")])
            .await
            .unwrap();
        assert_eq!(found[0].host, "a.example.com");
    }

    #[tokio::test]
    async fn a_name_without_records_has_none_and_a_refusal_is_an_error() {
        assert_eq!(served(AS_IT_IS, 0, &[]).await.unwrap(), []);
        assert_eq!(served(AS_IT_IS, NO_SUCH_NAME, &[]).await.unwrap(), []);
        served(AS_IT_IS, REFUSED, &[]).await.unwrap_err();
    }
}
