//! Tests `eldest top`, in a terminal.

use eldest::Evacuate;
use eldest_fixtures::text::has;
use eldest_testing::{Etcd, Proxy};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{DONE, Result, at, join, node, words};
use crate::terminal::Terminal;

fn top(etcd: &Etcd, more: &[&str]) -> Result<Terminal> {
    let args = [&["top", "--interval", "100ms"], more].concat();
    Terminal::start(at(etcd, &args), 16, 100)
}

#[tokio::test]
async fn top_shows_all_elections_live_and_restores_the_terminal() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let mut first = join(&a, "billing/run").await?;
    let _second = join(&b, "billing/run").await?;
    let _other = join(&b, "other").await?;
    let mut terminal = top(&etcd, &["billing"])?;
    let shown = terminal
        .shows("the leader", |s| s.contains("a leads with token"))
        .await?;
    has(&shown, &["eldest top   eldest/billing/   1 standing"]);
    has(&shown, &["*1  a", " 2  b"]);
    assert!(!shown.contains("other"), "{shown}");
    assert!(!terminal.is_ordinary());
    first.leave().await?;
    terminal
        .shows("the next leader", |s| {
            s.contains("b leads with token") && s.contains("*1  b")
        })
        .await?;
    b.evacuate(Evacuate::new("dc1").reason("new switches"))
        .await?;
    let order = "evacuated: dc1 until it is lifted, by b: new switches";
    terminal.shows("the order", |s| s.contains(order)).await?;
    b.lift("dc1").await?;
    terminal
        .shows("it is lifted", |s| !s.contains("evacuated"))
        .await?;
    terminal.type_in("q")?;
    assert_eq!(terminal.end().await?, DONE);
    let given_back = async || terminal.is_ordinary().then_some(());
    eldest_testing::eventually(crate::common::SOON, "the ordinary screen", given_back).await?;
    Ok(())
}

#[tokio::test]
async fn keys_and_signals_control_top() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let _candidates = (join(&a, "jobs").await?, join(&a, "mail").await?);
    let detail = |screen: &str, name: &str| {
        // The last line that begins with the name is the heading of the lower part, and contains nothing else.
        screen.lines().any(|line| line.trim_end() == name)
    };
    for end in ["\u{3}", "\u{1b}"] {
        let mut terminal = top(&etcd, &[])?;
        terminal
            .shows("the first one", |s| detail(s, "jobs"))
            .await?;
        terminal.type_in("\u{1b}[B")?;
        terminal
            .shows("the second one", |s| detail(s, "mail"))
            .await?;
        terminal.type_in("k")?;
        terminal
            .shows("the first one again", |s| detail(s, "jobs"))
            .await?;
        terminal.type_in(end)?;
        assert_eq!(terminal.end().await?, DONE);
    }
    let mut terminal = top(&etcd, &[])?;
    terminal
        .shows("the first one", |s| detail(s, "jobs"))
        .await?;
    kill_process(Pid::from_child(&terminal.child), Signal::TERM)?;
    assert_eq!(terminal.end().await?, DONE);
    Ok(())
}

#[tokio::test]
async fn an_outage_is_shown_and_waited_out() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let a = node(&etcd, "a").await?;
    let _candidate = join(&a, "jobs").await?;
    let line = "top --interval 100ms --connect-timeout 500ms --log off";
    let mut command = at(&etcd, &words(line));
    command.env("ELDEST_ENDPOINTS", proxy.endpoint());
    let mut terminal = Terminal::start(command, 16, 100)?;
    terminal
        .shows("the leader", |s| s.contains("a leads"))
        .await?;
    proxy.cut();
    terminal
        .shows("the outage", |s| {
            s.contains("NO ANSWER, this is") && s.contains("a leads")
        })
        .await?;
    proxy.heal();
    terminal
        .shows("etcd again", |s| {
            s.contains("eldest top") && s.contains("a leads")
        })
        .await?;
    terminal.type_in("q")?;
    assert_eq!(terminal.end().await?, DONE);
    Ok(())
}
