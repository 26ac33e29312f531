//! Tests every fault alone, those of a kind one after another on their own stage, and a few pairs.
#![cfg(target_os = "linux")]

use std::time::Duration;

use eldest_chaos::action::{Card, Realm, Side};
use eldest_chaos::{Plan, Result, Settings, actions, rows, run};

/// A TTL that just survives a change of etcd's leader.
const TTL: Duration = Duration::from_secs(4);
/// A TTL for a disk that is busy for seconds while three servers write 64 MiB.
const TTL_OF_MEMBERS: Duration = Duration::from_secs(12);
/// A TTL that is longer than the time to answer of steady challenges.
const TTL_OF_PEERS: Duration = Duration::from_secs(5);

fn settings() -> Settings {
    Settings {
        ttl: TTL,
        ..Settings::new(env!("CARGO_BIN_EXE_eldest-chaos"))
    }
}

/// The kinds of faults. They ensure that each fault is in exactly one test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Processes,
    LeadersLinks,
    FollowersLinks,
    Peers,
    Servers,
    /// Servers that are added, removed or defragmented; separate, so that the other test takes no longer.
    Members,
    Store,
    Agent,
    Certificates,
    Users,
    Clocks,
}

/// Names of the faults of the kind `Members`.
const MEMBERS: [&str; 3] = ["add-learner", "replace-member", "defrag-etcd-leader"];

fn kind(card: &Card) -> Kind {
    match (card.realm, card.side) {
        (Realm::Process, _) => Kind::Processes,
        (Realm::Links, Side::Leader) => Kind::LeadersLinks,
        (Realm::Links, _) => Kind::FollowersLinks,
        (Realm::Peers, _) => Kind::Peers,
        (Realm::Servers, _) if MEMBERS.contains(&card.name) => Kind::Members,
        (Realm::Servers, _) => Kind::Servers,
        (Realm::Store, _) => Kind::Store,
        (Realm::Agent, _) => Kind::Agent,
        (Realm::Certificates, _) => Kind::Certificates,
        (Realm::Users, _) => Kind::Users,
        (Realm::Clock, _) => Kind::Clocks,
    }
}

async fn each_alone(kind_of_faults: Kind) -> Result {
    let ttl = match kind_of_faults {
        Kind::Members => TTL_OF_MEMBERS,
        Kind::Peers => TTL_OF_PEERS,
        _ => TTL,
    };
    let settings = Settings {
        auth: kind_of_faults == Kind::Users,
        challenges: (kind_of_faults == Kind::Peers).then(|| "steady".to_owned()),
        ttl,
        ..settings()
    };
    let mut faults = rows(&settings);
    faults.retain(|fault| kind(&fault.card()) == kind_of_faults);
    let outcome = run(&settings, &Plan::only(faults)).await?;
    assert!(outcome.is_ok(), "{outcome}");
    println!("{outcome}");
    Ok(())
}

#[tokio::test]
async fn nodes_that_die_stop_damage_themselves_or_join_twice() -> Result {
    each_alone(Kind::Processes).await
}

#[tokio::test]
async fn leaders_that_lose_etcd_or_a_part_of_it() -> Result {
    each_alone(Kind::LeadersLinks).await
}

#[tokio::test]
async fn waiting_nodes_that_lose_etcd() -> Result {
    each_alone(Kind::FollowersLinks).await
}

#[tokio::test]
async fn nodes_that_hear_no_signs_of_life_while_etcd_is_well() -> Result {
    each_alone(Kind::Peers).await
}

#[tokio::test]
async fn servers_of_etcd_that_die_or_stop() -> Result {
    each_alone(Kind::Servers).await
}

#[tokio::test]
async fn servers_of_etcd_that_come_go_or_are_defragmented() -> Result {
    each_alone(Kind::Members).await
}

#[tokio::test]
async fn certificates_that_are_replaced_expire_or_are_unknown() -> Result {
    each_alone(Kind::Certificates).await
}

#[tokio::test]
async fn users_whose_password_or_role_changes() -> Result {
    each_alone(Kind::Users).await
}

#[tokio::test]
async fn wall_clocks_that_jump() -> Result {
    each_alone(Kind::Clocks).await
}

#[tokio::test]
async fn operators_strangers_and_a_full_etcd() -> Result {
    each_alone(Kind::Store).await
}

#[tokio::test]
async fn an_agent_that_dies_stops_or_loses_etcd_while_all_nodes_live() -> Result {
    each_alone(Kind::Agent).await
}

#[tokio::test]
async fn nodes_that_serve_later_get_warm_and_share_partitions() -> Result {
    let settings = Settings {
        ready: Some(Duration::from_millis(300)),
        ..settings()
    };
    let names = [
        "step-down-leader",
        "terminate-leader",
        "kill-leader",
        "stop-leader",
        "kill-follower",
    ];
    let faults = names.iter().filter_map(|name| actions::find(name));
    let outcome = run(&settings, &Plan::only(faults.collect())).await?;
    assert!(outcome.is_ok(), "{outcome}");
    println!("{outcome}");
    Ok(())
}

/// `cargo xtask chaos --pairs --seconds 600` makes more pairs, from other seeds.
#[tokio::test]
async fn random_pairs() -> Result {
    let settings = Settings {
        auth: true,
        ..settings()
    };
    let plan = Plan {
        faults: rows(&settings),
        alone: false,
        time: Some(Duration::from_secs(25)),
        seed: 9,
    };
    let outcome = run(&settings, &plan).await?;
    assert!(outcome.is_ok(), "{outcome}");
    println!("{outcome}");
    Ok(())
}
