//! Examines whether the time to answer challenges suits etcd, and whether other nodes can reach the port for signs of life.

use std::net::SocketAddr;
use std::time::Duration;

use eldest::operator::Times;
use eldest_http::contract::command::Level;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::findings::Findings;

const TIME: (&str, &str) = ("challenges", "answer_within");
const PORT: (&str, &str) = ("challenges", "challenges_port");
/// The longest wait for a connection to the port.
const CONNECT: Duration = Duration::from_secs(3);
/// The longest time to answer that is examined; no TTL is longer.
const LONGEST: u32 = 300_000;

/// Returns how long a read may take without costing the leadership: D less drift, the margin, the grace period and the
/// interval of reads.
fn spare(time: Duration, grace: Duration) -> Duration {
    let interval = (time / 3).min(Duration::from_millis(300));
    (time.mul_f64(0.999)).saturating_sub(time / 20 + grace + interval)
}

/// Returns the shortest time to answer, in steps of 0.1 s, with which a read may take that long.
fn shortest(needed: Duration) -> Option<Duration> {
    let each = (2..=LONGEST / 100).map(|tenths| Duration::from_millis(100) * tenths);
    let mut fitting = each.filter(|time| spare(*time, *time / 10) >= needed);
    fitting.next()
}

/// Checks the time to answer against the time that a linearizable read takes, and against the time in which etcd notices
/// that its own leader is gone.
pub(super) fn time(times: &Times, read: Duration, election: Duration, findings: &mut Findings) {
    let Some(time) = times.answer_within else {
        return;
    };
    let spare = spare(time, times.grace);
    let numbers = format!(
        "a read may take {spare:.2?} (less than {time:?} by the interval of reads, the grace period {:?} and the margin); \
         one takes {read:.1?} at worst",
        times.grace
    );
    let longer = |needed: Duration| {
        shortest(needed).map_or("bring etcd nearer".to_owned(), |time| {
            format!("--challenges {}ms or longer", time.as_millis())
        })
    };
    // One read may be lost.
    let needed = read * 2;
    if needed > spare {
        let message =
            format!("--challenges {time:?} is short and may cost the leadership: {numbers}");
        findings.bad(Level::Warn, TIME, message, longer(needed));
    } else if election + read > spare {
        let message = format!(
            "{time:?}; {numbers}; a change of etcd's leader, up to {election:.1?} to notice, ends terms: {} avoids that",
            longer(election + read)
        );
        findings.note(TIME.0, TIME.1, message);
    } else {
        let message = format!(
            "{time:?}; {numbers}, and a change of etcd's leader up to {election:.1?} to notice"
        );
        findings.ok(TIME.0, TIME.1, message);
    }
}

/// Checks that the advertised address leads to the port. If no node listens there, this command does for a moment.
pub(super) async fn port(listen: SocketAddr, advertised: &str, findings: &mut Findings) {
    let own = TcpListener::bind(listen).await;
    let advertised = match &own {
        // The system chose a port.
        Ok(own) if listen.port() == 0 => own.local_addr().map(|at| at.to_string()),
        _ => Ok(advertised.to_owned()),
    };
    let Ok(advertised) = advertised else {
        return;
    };
    let connected = timeout(CONNECT, TcpStream::connect(&advertised)).await;
    let problem = match (connected, own) {
        (Err(_), _) => format!("no answer within {CONNECT:?}"),
        (Ok(Err(error)), _) => error.to_string(),
        (Ok(Ok(_)), Err(error)) => {
            let message = format!(
                "{advertised} accepts connections; {listen} is in use ({error}), perhaps by a node"
            );
            findings.ok(PORT.0, PORT.1, message);
            return;
        }
        (Ok(Ok(stream)), Ok(own)) => match timeout(CONNECT, own.accept()).await {
            Ok(Ok((_, from))) if stream.local_addr().is_ok_and(|at| at.port() == from.port()) => {
                let message = format!("{advertised} leads to {listen}");
                findings.ok(PORT.0, PORT.1, message);
                return;
            }
            _ => format!("it leads elsewhere than to {listen}"),
        },
    };
    let message = format!(
        "other nodes cannot hear this one at {advertised}: {problem}; they challenge it again and again, and notice its \
         silence late"
    );
    let remedy =
        "correct --challenges-advertise, or let the nodes reach that port through the firewall";
    findings.bad(Level::Warn, PORT, message, remedy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advised_time_is_the_shortest_that_fits() {
        for needed in [1, 60, 300, 2500].map(Duration::from_millis) {
            let time = shortest(needed).unwrap();
            assert!(spare(time, time / 10) >= needed);
            let less = time.saturating_sub(Duration::from_millis(100));
            assert!(less < Duration::from_millis(200) || spare(less, less / 10) < needed);
        }
        assert_eq!(shortest(Duration::from_secs(300)), None);
    }
}
