//! Tests that evacuations are listed from memory, and ordered and lifted on request.

use std::time::Duration;

use eldest::{Announcement, ErrorKind, Session};
use eldest_fixtures::wait::until;
use eldest_http::{Limits, Node};
use eldest_testing::{Etcd, MemoryEtcd, eventually};
use serde_json::{Value, json};

use crate::caller::{Answer, Events, ask, get, send};
use crate::stage::{Result, SOON, Server, Standing, answers, options};

const ORDERS: &str = "/v1/evacuations";
const DC1: &str = "/v1/evacuations/dc1";
/// The number of calls that must not cause requests to etcd.
const CALLS: u64 = 100;

async fn put(server: &Server, path: &str, body: &Value) -> Result<Answer> {
    send(server.at, "PUT", path, &body.to_string()).await
}

async fn delete(server: &Server, path: &str) -> Result<Answer> {
    ask(server.at, "DELETE", path, "").await
}

/// A node that observes the election "team/e" and takes orders.
async fn taking(etcd: &MemoryEtcd) -> Result<(Session, Server)> {
    let session = etcd.session(options("ops")).await?;
    let election = session.election("team/e")?;
    let node = Node::new().observes(&election).evacuations(&session);
    let server = Server::plain(node).await?;
    answers(server.at, "/ready", 200).await?;
    listed(&server, &[]).await?;
    Ok((session, server))
}

/// Waits until these data centres are listed.
async fn listed(server: &Server, names: &[&str]) -> Result<Value> {
    let what = format!("{names:?} are evacuated");
    let list = eventually(SOON, what, async || {
        let list = get(server.at, ORDERS).await.ok()?.json();
        let all = list["evacuations"].as_array()?;
        let all = all.iter().map(|order| order["data_center"].as_str());
        all.eq(names.iter().map(|name| Some(*name))).then_some(list)
    });
    Ok(list.await?)
}

#[tokio::test]
async fn order_over_http_moves_the_leader_and_is_shown_until_lifted() -> Result {
    let etcd = MemoryEtcd::start();
    let at = |place| Announcement::default().with_data_center(place);
    let a = Standing::with(&etcd, options("a").announcement(at("dc1"))).await?;
    answers(a.server.at, "/leader", 200).await?;
    let b = Standing::with(&etcd, options("b").announcement(at("dc2"))).await?;
    let (ops, server) = taking(&etcd).await?;
    let mut events = Events::follow(b.server.at, "/v1/events").await?;
    let order = json!({ "for_ms": 7_200_500, "reason": "new switches", "by": "me" });
    let given = put(&server, DC1, &order).await?;
    assert_eq!(given.status, 200, "{given:?}");
    let given = given.json();
    let (since, until) = (&given["since_unix_ms"], &given["until_unix_ms"]);
    let lasts = until.as_u64().zip(since.as_u64()).map(|(a, b)| a - b);
    assert_eq!(lasts, Some(7_200_500));
    for (field, wanted) in [
        ("data_center", "dc1"),
        ("reason", "new switches"),
        ("by", "me"),
    ] {
        assert_eq!(given[field], wanted, "{field}");
    }
    answers(b.server.at, "/leader", 200).await?;
    let moved = |state: &Value| {
        state["leader"]["identity"] == "b" && state["evacuations"] == json!([given])
    };
    events.until("b leads because of the order", moved).await?;
    let list = listed(&server, &["dc1"]).await?;
    assert_eq!(list["evacuations"][0], given);
    assert_eq!(list["namespace"], "eldest");
    assert_eq!(list["stale"], json!(false));
    assert_eq!(list["refused"], Value::Null);
    assert!(list["age_ms"].is_u64(), "{list}");

    let lifted = delete(&server, DC1).await?;
    assert_eq!((lifted.status, lifted.json()), (200, given));
    let lifted = |state: &Value| state["evacuations"] == json!([]);
    let state = events.until("it is lifted", lifted).await?;
    assert_eq!(state["leader"]["identity"], "b", "nobody moves back");
    delete(&server, DC1).await?.refused(404, "not_evacuated");
    assert_eq!(ops.evacuations().await?.len(), 0);
    Ok(())
}

#[tokio::test]
async fn orders_are_replaced_and_names_may_have_slashes() -> Result {
    let etcd = MemoryEtcd::start();
    let (ops, server) = taking(&etcd).await?;
    for (path, order) in [
        ("eu/1", json!({})),
        (
            "eu%2F1",
            json!({ "for_ms": null, "reason": null, "by": null }),
        ),
        ("caf%C3%A9", json!({ "reason": "second" })),
        ("eu/1", json!({ "reason": "third", "for_ms": 5000 })),
    ] {
        let answer = put(&server, &format!("{ORDERS}/{path}"), &order).await?;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["by"], "ops", "the node's name");
    }
    // The list has the same names before the node has received the last order.
    eventually(SOON, "the last order replaces the first", async || {
        let list = listed(&server, &["café", "eu/1"]).await.ok()?;
        (list["evacuations"][1]["reason"] == "third").then_some(())
    })
    .await?;
    for name in ["eu/1", "caf%C3%A9"] {
        let lifted = delete(&server, &format!("{ORDERS}/{name}")).await?;
        assert_eq!(lifted.status, 200, "{lifted:?}");
    }
    assert_eq!(ops.evacuations().await?.len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_bad_order_is_refused_with_the_rule_and_leaves_nothing() -> Result {
    let etcd = MemoryEtcd::start();
    let (ops, server) = taking(&etcd).await?;
    let long = "x".repeat(4097);
    for (place, order, code, rule) in [
        (
            "dc1",
            json!({ "for_ms": 4999 }),
            "bad_body",
            "5000 to 2678400000",
        ),
        (
            "dc1",
            json!({ "for_ms": 2_678_400_001_u64 }),
            "bad_body",
            "5000 to 2678400000",
        ),
        ("dc1", json!({ "for_ms": "2h" }), "bad_body", "invalid type"),
        (
            "dc1",
            json!({ "ttl_ms": 5000 }),
            "bad_body",
            "unknown field `ttl_ms`",
        ),
        (
            "dc1",
            json!({ "reason": long }),
            "bad_order",
            "4097 bytes; at most 4096",
        ),
        (
            "dc1",
            json!({ "by": long }),
            "bad_order",
            "4097 bytes; at most 4096",
        ),
        ("a%0Ab", json!({}), "bad_order", "control characters"),
        ("%ff", json!({}), "bad_path", "not UTF-8"),
    ] {
        let answer = put(&server, &format!("{ORDERS}/{place}"), &order).await?;
        answer.refused(400, code);
        assert!(answer.body.contains(rule), "{answer:?}");
    }
    let name = format!("{ORDERS}/{}", "x".repeat(513));
    for answer in [
        put(&server, &name, &json!({})).await?,
        delete(&server, &name).await?,
    ] {
        answer.refused(400, "bad_order");
    }
    let form = "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}";
    let answer = ask(server.at, "PUT", DC1, form).await?;
    answer.refused(415, "not_json");
    assert_eq!(get(server.at, DC1).await?.status, 405);
    assert_eq!(ops.evacuations().await?.len(), 0);
    Ok(())
}

#[tokio::test]
async fn orders_need_a_node_that_takes_them_and_its_token() -> Result {
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a")).await?;
    let without = Server::plain(Node::new()).await?;
    for answer in [
        get(without.at, ORDERS).await?,
        put(&without, DC1, &json!({})).await?,
        delete(&without, DC1).await?,
    ] {
        answer.refused(404, "no_evacuations");
    }
    let node = Node::new().evacuations(&session);
    let server = Server::start(node, Limits::default(), |auth| auth.token("secret")).await?;
    listed(&server, &[]).await?;
    for answer in [
        put(&server, DC1, &json!({})).await?,
        delete(&server, DC1).await?,
    ] {
        answer.refused(401, "token_needed");
    }
    let foreign = "Origin: http://evil.example\r\nContent-Length: 0\r\n";
    let answer = ask(server.at, "DELETE", DC1, foreign).await?;
    answer.refused(403, "foreign_origin");
    assert_eq!(session.evacuations().await?.len(), 0);
    let token = "Authorization: Bearer secret\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(ask(server.at, "PUT", DC1, token).await?.status, 200);
    listed(&server, &["dc1"]).await?;
    Ok(())
}

#[tokio::test]
async fn the_list_is_answered_without_etcd_and_an_order_is_not() -> Result {
    let mut etcd = Etcd::start().await?;
    let options = options("ops").request_timeout(Duration::from_millis(200));
    let options = options.connect_timeout(Duration::from_millis(300));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let elections = [session.election("e")?, session.election("f")?];
    let node = elections.iter().fold(Node::new(), Node::observes);
    let server = Server::plain(node.evacuations(&session)).await?;
    session.evacuate("dc1").await?;
    let list = listed(&server, &["dc1"]).await?;
    let watchers = async || etcd.metric("etcd_debugging_mvcc_watcher_total").await as u64;
    until(SOON, "one watch for the orders", async || {
        watchers().await == 3
    })
    .await?;
    let asked = async || etcd.metric("grpc_server_started_total").await as u64;
    let before = asked().await;
    for _ in 0..CALLS {
        get(server.at, ORDERS).await?;
    }
    // On a machine too busy for its request timeout, the session repeats some requests of its own.
    let more = asked().await - before;
    assert!(more < CALLS / 2, "callers ask etcd for nothing: {more}");
    etcd.kill();
    let again = get(server.at, ORDERS).await?.json();
    assert_eq!(again["evacuations"], list["evacuations"]);
    for answer in [
        put(&server, DC1, &json!({})).await?,
        delete(&server, DC1).await?,
    ] {
        answer.refused(503, "etcd");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    let error = session.evacuate("dc1").await.expect_err("no etcd");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    Ok(())
}
