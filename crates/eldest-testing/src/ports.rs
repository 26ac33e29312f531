//! Reserves ports for the servers of many test processes, so that each server keeps its port across a restart.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use super::error::{Error, ErrorKind, Result};

/// Below the range from which the kernel takes ports for outgoing connections: such a connection could take
/// the port while its server is down, or a client that retries could even connect to itself.
const RANGE: std::ops::Range<u16> = 16_000..32_000;

/// A TCP port. On the loopback interface it stays reserved until dropped, even while no process listens.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    /// The UDP port of the same number, as a claim. Other processes with this code see it, it does not occupy the TCP
    /// port, and the kernel releases it however this process ends. `None` at other addresses, which may not be ours.
    _claim: Option<UdpSocket>,
}

impl Port {
    /// Reserves a port on which no process listens. Another process may still take it before its server does.
    ///
    /// # Errors
    ///
    /// [`Machine`](ErrorKind::Machine): there is no free port.
    pub fn free() -> Result<Self> {
        for _ in 0..1_000 {
            let number = fastrand::u16(RANGE);
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
            let Ok(claim) = UdpSocket::bind(address) else {
                continue;
            };
            if TcpListener::bind(address).is_ok() {
                return Ok(Self {
                    address,
                    _claim: Some(claim),
                });
            }
        }
        Err(Error::new(
            ErrorKind::Machine,
            format!("no free port on 127.0.0.1 from {RANGE:?}"),
        ))
    }

    /// Returns that port at an address that the caller set up, where only its server uses ports.
    pub(super) fn elsewhere(address: IpAddr, number: u16) -> Self {
        Self {
            address: (address, number).into(),
            _claim: None,
        }
    }

    /// Returns the port's number.
    pub fn number(&self) -> u16 {
        self.address.port()
    }

    /// Returns the port with its address, as `ADDRESS:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_never_given_out_twice_while_it_is_kept() {
        let ports: Vec<Port> = (0..200).map(|_| Port::free().expect("free")).collect();
        let distinct: std::collections::HashSet<u16> =
            ports.iter().map(|p| p.address.port()).collect();
        assert_eq!(distinct.len(), ports.len());
    }

    #[test]
    fn a_kept_port_can_be_listened_on() {
        let port = Port::free().expect("free");
        TcpListener::bind(port.address()).expect("listens");
    }
}
