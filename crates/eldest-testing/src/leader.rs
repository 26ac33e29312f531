//! Asks several nodes at once whether they lead, and waits until exactly one answers that it does.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::fmt::Display;
use std::time::Duration;

use futures::future::join_all;

use super::error::{Error, ErrorKind, Result};

/// The time limit of one answer of one node; a frozen node never answers.
const PATIENCE: Duration = Duration::from_millis(500);
/// The pause between two rounds.
const PAUSE: Duration = Duration::from_millis(20);
/// How long to wait for the last answer of a busy leader.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Waits until exactly one of the nodes answers that it leads, and returns that node.
///
/// `leads` asks one node; all are asked at the same time, again and again. An error, and an answer that takes longer
/// than half a second, counts as "no": a killed node refuses connections, a frozen one never answers. Leave out nodes
/// that are cut off from etcd but not from the test: an old leader answers "yes" until its own deadline.
///
/// ```no_run
/// # struct Node { name: &'static str, url: String }
/// # impl std::fmt::Display for Node {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.name) }
/// # }
/// # async fn http_status(_: &str) -> Result<u16, std::io::Error> { Ok(200) }
/// # async fn example(nodes: Vec<Node>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::time::Duration;
/// use eldest_testing::one_leader;
///
/// // `nodes` are whatever the test knows of them; `Display` names them.
/// let leads = async |node: &Node| http_status(&node.url).await.map(|status| status == 200);
/// let leader = one_leader(Duration::from_secs(10), &nodes, leads).await?;
/// println!("{} leads", leader.name);
/// # Ok(())
/// # }
/// ```
///
/// The function does not say how long an answer is true: two nodes that answer "yes" one after the other may both be
/// right. A [history](super::history) shows that two never lead at once.
///
/// # Errors
///
/// [`TimedOut`](ErrorKind::TimedOut): the deadline passed first; the text has each node's last answer.
pub async fn one_leader<'n, N, E>(
    deadline: Duration,
    nodes: impl IntoIterator<Item = &'n N>,
    leads: impl AsyncFn(&'n N) -> Result<bool, E>,
) -> Result<&'n N>
where
    N: Display + 'n,
    E: Display,
{
    let nodes: Vec<&N> = nodes.into_iter().collect();
    let mut last = String::from("nobody was asked");
    let one = tokio::time::timeout(deadline, async {
        loop {
            let said = ask(&nodes, &leads).await;
            last = describe(&said);
            let mut leaders = said.iter().filter(|said| said.leads());
            if let (Some(leader), None) = (leaders.next(), leaders.next()) {
                return leader.node;
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    let one = one.await;
    one.map_err(|_| {
        let text = format!("not within {deadline:?}: exactly one node leads; {last}");
        Error::new(ErrorKind::TimedOut, text)
    })
}

/// Checks for some time that `leader` continues to lead and that no other node answers that it does: for example, that
/// a node that came back does not preempt. `leader` may be among `nodes`; a late answer of the leader does not count as
/// "no".
///
/// # Errors
///
/// [`Contradicted`](ErrorKind::Contradicted): another node answers "yes" or the leader "no", at once; or the leader
/// does not answer "yes" at the end.
pub async fn one_leader_stays<'n, N, E>(
    during: Duration,
    leader: &'n N,
    nodes: impl IntoIterator<Item = &'n N>,
    leads: impl AsyncFn(&'n N) -> Result<bool, E>,
) -> Result<()>
where
    N: Display + 'n,
    E: Display,
{
    let mut nodes: Vec<&N> = nodes.into_iter().collect();
    nodes.retain(|node| !std::ptr::eq(*node, leader));
    nodes.push(leader);
    let mut last = String::new();
    let begin = tokio::time::Instant::now();
    while begin.elapsed() <= during + LAST_WORD {
        let over = begin.elapsed() >= during;
        let said = ask(&nodes, &leads).await;
        last = describe(&said);
        for said in &said {
            if said.leads() != std::ptr::eq(said.node, leader) && said.answered() {
                return Err(contradicted(format!(
                    "{leader} should go on leading, but {last}"
                )));
            }
        }
        if over && said.iter().any(Said::leads) {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(contradicted(format!(
        "{leader} should lead at the end, but {last}"
    )))
}

fn contradicted(text: String) -> Error {
    Error::new(ErrorKind::Contradicted, text)
}

/// The answer of a node.
struct Said<'n, N> {
    node: &'n N,
    /// The text is for people.
    answer: Result<bool, String>,
}

impl<N> Said<'_, N> {
    fn leads(&self) -> bool {
        matches!(self.answer, Ok(true))
    }

    fn answered(&self) -> bool {
        self.answer.is_ok()
    }
}

async fn ask<'n, N, E: Display>(
    nodes: &[&'n N],
    leads: &impl AsyncFn(&'n N) -> Result<bool, E>,
) -> Vec<Said<'n, N>> {
    let asked = nodes.iter().map(|&node| async move {
        let answer = match tokio::time::timeout(PATIENCE, leads(node)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {PATIENCE:?}")),
        };
        Said { node, answer }
    });
    join_all(asked).await
}

fn describe<N: Display>(said: &[Said<'_, N>]) -> String {
    let said = said.iter().map(|Said { node, answer }| match answer {
        Ok(true) => format!("{node} says that it leads"),
        Ok(false) => format!("{node} says that it does not"),
        Err(error) => format!("{node}: {error}"),
    });
    said.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    /// Long enough for two rounds in which every node answers at once.
    const BRIEFLY: Duration = Duration::from_millis(100);

    /// A node's answer in each round; the last answer stays.
    struct Node {
        name: &'static str,
        answers: &'static [Answer],
        asked: AtomicUsize,
    }

    #[derive(Clone, Copy)]
    enum Answer {
        Yes,
        No,
        Refuses,
        Hangs,
    }
    use Answer::{Hangs, No, Refuses, Yes};

    impl Display for Node {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.name)
        }
    }

    fn node(name: &'static str, answers: &'static [Answer]) -> Node {
        let asked = AtomicUsize::new(0);
        Node {
            name,
            answers,
            asked,
        }
    }

    async fn leads(node: &Node) -> Result<bool, &'static str> {
        let round = node.asked.fetch_add(1, SeqCst).min(node.answers.len() - 1);
        match node.answers[round] {
            Yes => Ok(true),
            No => Ok(false),
            Refuses => Err("connection refused"),
            Hangs => pending().await,
        }
    }

    #[tokio::test]
    async fn only_node_that_answers_yes_leads() -> Result<()> {
        let nodes = [
            node("n1", &[Refuses]),
            node("n2", &[Yes, Yes, No]),
            node("n3", &[No, Yes, Yes]),
        ];
        let leader = one_leader(SOON, &nodes, leads).await?;
        assert_eq!(leader.name, "n2", "n3 does not say so yet");
        let leader = one_leader(SOON, &nodes, leads).await?;
        assert_eq!(leader.name, "n3", "while both say so, it asks on");
        Ok(())
    }

    #[tokio::test]
    async fn silent_node_delays_the_others_only_briefly() -> Result<()> {
        let nodes = [
            node("n1", &[Hangs]),
            node("n2", &[Hangs]),
            node("n3", &[Hangs]),
            node("n4", &[Yes]),
        ];
        // Asked one after another, the nodes would take three times as long.
        let leader = one_leader(PATIENCE * 2, &nodes, leads).await?;
        assert_eq!(leader.name, "n4");
        Ok(())
    }

    #[tokio::test]
    async fn error_names_the_last_answer_of_each_node() {
        let nodes = [node("n1", &[Yes]), node("n2", &[Yes]), node("n3", &[No])];
        let error = one_leader(BRIEFLY, &nodes, leads).await;
        assert_eq!(
            error.err().map(|error| error.to_string()).as_deref(),
            Some(
                "not within 100ms: exactly one node leads; n1 says that it leads, n2 says that it leads, \
                 n3 says that it does not"
            )
        );
        let nodes = [node("n1", &[Refuses])];
        let error = one_leader(BRIEFLY, &nodes, leads).await.err();
        let error = error.expect("nobody leads").to_string();
        assert!(error.ends_with("n1: connection refused"), "{error}");
    }

    #[tokio::test]
    async fn a_leader_stays_though_it_is_late_now_and_then() -> Result<()> {
        let nodes = [node("n1", &[Yes, Refuses, Yes]), node("n2", &[No, Refuses])];
        one_leader_stays(BRIEFLY, &nodes[0], &nodes, leads).await?;
        assert!(nodes[1].asked.load(SeqCst) >= 2);
        Ok(())
    }

    #[tokio::test]
    async fn a_second_leader_or_a_denial_ends_the_watch() {
        let nodes = [node("n1", &[Yes]), node("n2", &[No, No, Yes])];
        let error = one_leader_stays(SOON, &nodes[0], &nodes, leads).await;
        assert_eq!(
            error.err().map(|error| error.to_string()).as_deref(),
            Some("n1 should go on leading, but n2 says that it leads, n1 says that it leads")
        );
        let nodes = [node("n1", &[Yes, No]), node("n2", &[No])];
        let error = one_leader_stays(SOON, &nodes[0], &nodes, leads).await;
        assert!(error.is_err());
    }

    #[tokio::test]
    async fn a_leader_that_is_silent_at_the_end_did_not_stay() {
        let nodes = [node("n1", &[Yes, Refuses])];
        let error = one_leader_stays(BRIEFLY, &nodes[0], [], leads).await;
        let error = error.expect_err("silent").to_string();
        assert!(error.contains("connection refused"), "{error}");
    }

    #[tokio::test]
    async fn one_leader_can_be_awaited_in_a_task() -> Result<()> {
        let task = tokio::spawn(async {
            let nodes = [node("n1", &[Yes])];
            let leader = one_leader(SOON, &nodes, leads).await?;
            one_leader_stays(BRIEFLY, leader, &nodes, leads).await
        });
        task.await.expect("it ended")
    }
}
