//! Examines whether the time to answer challenges suits etcd, and whether other nodes can reach the port for signs of life.

use std::net::SocketAddr;
use std::time::Duration;

use eldest::operator::{Times, times};
use eldest::{Challenges, SessionOptions};
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

/// Returns the shortest time to answer, in steps of 0.1 s, with which a read may take that long.
fn shortest(options: &SessionOptions, needed: Duration) -> Option<Duration> {
    let mut each = (2..=LONGEST / 100).map(|tenths| Duration::from_millis(100) * tenths);
    each.find(|time| {
        let options = options.clone().challenges(Challenges::answer_within(*time));
        times(&options).is_ok_and(|times| times.read_spare >= Some(needed))
    })
}

/// Checks the time to answer against the time that a linearizable read takes, and against the time in which etcd notices
/// that its own leader is gone.
pub(super) fn time(
    options: &SessionOptions,
    times: &Times,
    (read, election): (Duration, Duration),
    findings: &mut Findings,
) {
    let (Some(time), Some(spare)) = (times.answer_within, times.read_spare) else {
        return;
    };
    let numbers = format!(
        "a read may take {spare:.2?} (less than {time:?} by the interval of reads, the grace period {:?} and the margin); \
         one takes {read:.1?} at worst",
        times.grace
    );
    let longer = |needed: Duration| {
        shortest(options, needed).map_or(
            "set a longer --ttl, or bring etcd nearer".to_owned(),
            |time| format!("--challenges {}ms or longer", time.as_millis()),
        )
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

/// Checks that the advertised addresses lead to the ports. Only a node with two sessions uses the second port.
pub(super) async fn ports(ports: &[(SocketAddr, String)], findings: &mut Findings) {
    for (index, (listen, advertised)) in ports.iter().enumerate() {
        match (reach(*listen, advertised).await, index) {
            (Ok(message), _) => findings.ok(PORT.0, PORT.1, message),
            (Err(problem), 0) => {
                let message = format!(
                    "other nodes cannot hear this one at {problem}; they challenge it again and again, and notice its \
                     silence late"
                );
                let remedy = "correct --challenges-advertise, or let the nodes reach that port through the firewall";
                findings.bad(Level::Warn, PORT, message, remedy);
            }
            (Err(problem), _) => {
                let message = format!(
                    "`eldest run` and `eldest lock` have a second session, whose port is the next one: other nodes cannot \
                     hear it at {problem}"
                );
                findings.note(PORT.0, PORT.1, message);
            }
        }
    }
}

/// Returns how the advertised address was reached, or the address with the problem. If no node listens there, this
/// command does for a moment.
async fn reach(listen: SocketAddr, advertised: &str) -> Result<String, String> {
    let own = TcpListener::bind(listen).await;
    let advertised = match &own {
        // The system chose a port.
        Ok(own) if listen.port() == 0 => {
            let chosen = own.local_addr();
            chosen.map_err(|error| error.to_string())?.to_string()
        }
        _ => advertised.to_owned(),
    };
    let problem = |why: String| format!("{advertised}: {why}");
    let late = || problem(format!("no answer within {CONNECT:?}"));
    let connected = timeout(CONNECT, TcpStream::connect(&advertised)).await;
    let stream = connected
        .map_err(|_| late())?
        .map_err(|error| problem(error.to_string()))?;
    let own = match own {
        Ok(own) => own,
        Err(error) => {
            return Ok(format!(
                "{advertised} accepts connections; {listen} is in use ({error}), perhaps by a node"
            ));
        }
    };
    match timeout(CONNECT, own.accept()).await {
        Ok(Ok((_, from))) if stream.local_addr().is_ok_and(|at| at.port() == from.port()) => {
            Ok(format!("{advertised} leads to {listen}"))
        }
        _ => Err(problem(format!("it leads elsewhere than to {listen}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examines D with a read that takes that many milliseconds, and an election timeout of 1 s.
    fn examined(challenges: Challenges, read: u64) -> eldest_http::contract::command::Finding {
        let options = SessionOptions::new("n").ttl(Duration::from_secs(30));
        let times = times(&options.clone().challenges(challenges)).unwrap();
        let mut findings = Findings::default();
        let taken = (Duration::from_millis(read), Duration::from_secs(1));
        time(&options, &times, taken, &mut findings);
        findings.examination().findings.remove(0)
    }

    #[test]
    fn time_to_answer_suits_reads_and_changes_of_etcds_leader() {
        for (challenges, read, level) in [
            (Challenges::steady(), 1500, Level::Ok),
            (Challenges::fast(), 1, Level::Note),
            (Challenges::fast(), 102, Level::Note),
            (Challenges::fast(), 105, Level::Warn),
            (Challenges::steady(), 1600, Level::Warn),
        ] {
            let found = examined(challenges.clone(), read);
            assert_eq!(found.level, level, "{read} ms: {found:?}");
        }
    }

    #[test]
    fn advised_time_is_the_shortest_that_fits() {
        let options = SessionOptions::new("n").ttl(Duration::from_secs(10));
        let spare = |time| {
            let options = options.clone().challenges(Challenges::answer_within(time));
            times(&options).ok().and_then(|times| times.read_spare)
        };
        for needed in [1, 60, 300, 2500].map(Duration::from_millis) {
            let time = shortest(&options, needed).unwrap();
            assert!(spare(time) >= Some(needed));
            assert!(spare(time.saturating_sub(Duration::from_millis(100))) < Some(needed));
        }
        assert_eq!(shortest(&options, Duration::from_secs(9)), None);
    }
}
