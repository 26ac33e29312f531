//! Looks names up: addresses by the system's resolver, and SRV records in DNS.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};

/// Where a service is, as an SRV record says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::exhaustive_structs,
    reason = "hidden: for crates that pin the exact version"
)]
pub struct Service {
    /// Lower ones come first.
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

/// Returns the SRV records of the name, or none if there is no such name. The resolver lives for this one question, so that
/// it has the system's present configuration, and that none of its tasks stays.
#[cfg(feature = "srv")]
pub(super) async fn services(name: &str) -> io::Result<Vec<Service>> {
    let resolver = hickory_resolver::TokioResolver::builder_tokio();
    asked(resolver.map_err(io::Error::other)?, name).await
}

#[cfg(feature = "srv")]
async fn asked(
    resolver: hickory_resolver::ResolverBuilder<
        hickory_resolver::net::runtime::TokioRuntimeProvider,
    >,
    name: &str,
) -> io::Result<Vec<Service>> {
    use hickory_resolver::proto::rr::RData;
    let resolver = resolver.build().map_err(io::Error::other)?;
    let found = match resolver.srv_lookup(name).await {
        Ok(found) => found,
        Err(error) if error.is_no_records_found() => return Ok(Vec::new()),
        Err(error) => return Err(io::Error::other(error)),
    };
    let records = found.answers().iter().filter_map(|record| {
        let RData::SRV(record) = &record.data else {
            return None;
        };
        let host = record.target.to_utf8();
        Some(Service {
            priority: record.priority,
            host: host.trim_end_matches('.').to_owned(),
            port: record.port,
        })
    });
    // The target `.` says that there is no such service.
    Ok(records.filter(|record| !record.host.is_empty()).collect())
}

#[cfg(all(test, feature = "srv"))]
#[allow(clippy::disallowed_methods)] // tests run in real time
mod tests {
    use std::net::Ipv4Addr;

    use hickory_resolver::Resolver;
    use hickory_resolver::config::{NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;
    use tokio::net::UdpSocket;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    const NO_SUCH_NAME: u8 = 3;
    const REFUSED: u8 = 5;

    /// A name as DNS writes it.
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
            // The question's name, SRV, the internet, a minute.
            answer.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60]);
            answer.extend((host.len() as u16 + 6).to_be_bytes());
            for number in [*priority, 0, *port] {
                answer.extend(number.to_be_bytes());
            }
            answer.extend(host);
        }
        answer
    }

    /// What a name server that answers this makes of one question.
    async fn served(
        code: u8,
        records: &'static [(u16, u16, &'static str)],
    ) -> io::Result<Vec<Service>> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let mut question = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut question).await.unwrap();
                let answer = answer(&question[..length], code, records);
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        let _server = AbortOnDropHandle::new(server);
        let mut at = NameServerConfig::udp(Ipv4Addr::LOCALHOST.into());
        at.connections[0].port = port;
        let config = ResolverConfig::from_name_servers(vec![at]);
        let resolver = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
        asked(resolver, "_etcd-client._tcp.example.com.").await
    }

    #[tokio::test]
    async fn services_are_read_from_the_name_server_s_answer() {
        let found = served(0, &[(20, 2379, "a.example.com"), (10, 1, "b.example.com")]).await;
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
        // The root says that there is no such service.
        assert_eq!(served(0, &[(0, 0, "")]).await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_name_without_records_has_none_and_a_refusal_is_an_error() {
        assert_eq!(served(0, &[]).await.unwrap(), []);
        assert_eq!(served(NO_SUCH_NAME, &[]).await.unwrap(), []);
        served(REFUSED, &[]).await.unwrap_err();
    }
}
