//! Examines whether a node's request timeout, TTL and grace period suit etcd and the distance to it, in numbers.

use std::time::Duration;

use eldest::operator::{LOST_PACKET, Times, times, ttl_floor};
use eldest_http::contract::command::Level;

use super::challenges;
use super::cluster::Patient;
use super::findings::Findings;

const TIMEOUT: (&str, &str) = ("ttl", "request_timeout");
const TTL: (&str, &str) = ("ttl", "ttl");

/// The time that one answer of the farthest or slowest endpoint may take.
#[derive(Debug)]
struct Needed<'a> {
    url: &'a str,
    round_trip: Duration,
    /// Time beside the round trips, for a lost packet or a slow member.
    rest: Duration,
    /// The time by which the slowest read exceeded its round trips, with a factor for slower moments.
    slow: Duration,
}

impl Needed<'_> {
    /// Connecting with TLS takes four round trips, and a request through another member than etcd's leader two.
    fn timeout(&self) -> Duration {
        self.round_trip * 6 + self.rest
    }

    /// Returns how long a linearizable read takes at worst, on a connection that stands.
    fn read(&self) -> Duration {
        self.round_trip * 2 + self.slow
    }

    fn is_far(&self) -> bool {
        self.round_trip * 6 >= self.rest
    }

    fn described(&self) -> String {
        let why = if self.rest > LOST_PACKET {
            "slow answers"
        } else {
            "a lost packet"
        };
        format!(
            "six round trips of {:.1?} to {} and {:.1?} for {why} are {:.1?}",
            self.round_trip,
            self.url,
            self.rest,
            self.timeout()
        )
    }
}

impl Patient<'_> {
    /// Checks that the configured times suit etcd and its distance.
    pub(super) async fn times(&self, findings: &mut Findings) -> eldest::Result<()> {
        let shortest = match self.one().shortest_ttl().await {
            Ok(shortest) => shortest,
            Err(error) => {
                let remedy = "a node needs a lease to become a candidate; see the findings above";
                let message = format!("no lease was granted: {}", error.report());
                findings.bad(Level::Fail, TTL, message, remedy);
                return Ok(());
            }
        };
        let times = times(self.options)?;
        if times.ttl < shortest {
            let message = format!(
                "--ttl is {:?}, but this etcd grants no lease below {shortest:?}",
                times.ttl
            );
            let remedy = format!("--ttl {}s", shortest.as_secs());
            findings.bad(Level::Warn, TTL, message, remedy);
        }
        // etcd rounds up, so this is the longest that it can be.
        let election = shortest.mul_f64(2.0 / 3.0);
        let needed = self.needed();
        let Some(advice) = self.advice(&needed, election, shortest) else {
            let message = format!(
                "no TTL up to 300 s suffices for these answer times and options: {}",
                needed.described()
            );
            let remedy = "check etcd's disk and network; do not set --margin and --grace";
            findings.bad(Level::Fail, TTL, message, remedy);
            return Ok(());
        };
        timeout(&times, &needed, &advice, findings);
        if let Some(times) = &self.challenged {
            challenges::time(self.options, times, (needed.read(), election), findings);
        }
        self.ttl(&times, &needed, election, advice, findings);
        Ok(())
    }

    /// Returns the needs of the endpoint whose answers take the longest.
    fn needed(&self) -> Needed<'_> {
        let each = self.answering.iter().map(|(endpoint, report)| {
            let round_trip = report.distance.map_or(Duration::ZERO, |it| it.median);
            // From here to the member, from there to etcd's leader, and from there to a majority. The factor allows for
            // slower times than these few moments show.
            let slow = report.slowest.unwrap_or_default();
            let slow = slow.saturating_sub(round_trip * 3) * 4;
            Needed {
                url: endpoint.url(),
                round_trip,
                rest: slow.max(LOST_PACKET),
                slow,
            }
        });
        each.max_by_key(Needed::timeout)
            .unwrap_or_else(|| unreachable!("one endpoint answers"))
    }

    /// Returns the options with which the times fit, if any do.
    fn advice(&self, needed: &Needed, election: Duration, shortest: Duration) -> Option<String> {
        let answer = needed.timeout();
        let floor = ttl_floor(self.options, answer, election);
        if let Some(floor) = floor.filter(|_| !needed.is_far()) {
            return Some(format!(
                "--ttl {}s or longer",
                floor.max(shortest).as_secs()
            ));
        }
        let round_trip = answer.saturating_sub(LOST_PACKET).as_secs_f64() / 6.0;
        let round_trip = Duration::from_millis((round_trip * 1e3).ceil() as u64);
        let options = self.options.clone().wan(round_trip);
        let floor = ttl_floor(&options, answer, election)?.max(shortest);
        let times = times(&options).ok()?;
        let (timeout, ttl) = (times.request_timeout, times.ttl);
        let longer = if floor > ttl {
            format!(" --ttl {}s", floor.as_secs())
        } else {
            String::new()
        };
        let instead = if self.connection.has_times() {
            " instead of --request-timeout and --ttl"
        } else {
            ""
        };
        Some(format!(
            "--round-trip {round_trip:?}{longer}{instead}: a request timeout of {timeout:?} and a TTL of {:?}",
            floor.max(ttl)
        ))
    }

    fn ttl(
        &self,
        times: &Times,
        needed: &Needed,
        election: Duration,
        advice: String,
        findings: &mut Findings,
    ) {
        let Times {
            ttl,
            margin,
            grace,
            spare,
            ..
        } = *times;
        let timeout = times.request_timeout.max(needed.timeout());
        let longest = timeout * 2 + election;
        let numbers = format!(
            "a renewal may be {spare:.2?} late (two thirds of the TTL, less the margin {margin:?} and the grace period \
             {grace:?}); two answers of {timeout:.1?} and a change of etcd's leader, up to {election:.1?} to notice, take \
             {longest:.1?}"
        );
        if longest > spare {
            let message = format!("--ttl {ttl:?} is short and may cost the leadership: {numbers}");
            let room = (spare + grace).saturating_sub(longest);
            let shorter = match self.grace {
                Some(_) if !room.is_zero() => {
                    format!("; or --grace {}ms or shorter", room.as_millis())
                }
                _ => String::new(),
            };
            findings.bad(Level::Warn, TTL, message, advice + &shorter);
        } else {
            let floor = ttl_floor(self.options, needed.timeout(), election);
            let floor = floor.map_or_else(String::new, |floor| {
                format!("; {floor:?} would suffice for this etcd and its answer times")
            });
            findings.ok(TTL.0, TTL.1, format!("{ttl:?}; {numbers}{floor}"));
        }
    }
}

fn timeout(times: &Times, needed: &Needed, advice: &str, findings: &mut Findings) {
    let (limit, why) = (times.request_timeout, needed.described());
    if limit < needed.timeout() {
        let message = format!("--request-timeout {limit:?} is short: {why}");
        findings.bad(Level::Warn, TIMEOUT, message, advice);
    } else {
        findings.ok(
            TIMEOUT.0,
            TIMEOUT.1,
            format!("request timeout {limit:?}; {why}"),
        );
    }
}
