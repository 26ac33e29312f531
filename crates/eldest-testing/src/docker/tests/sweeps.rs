//! Tests sweeps that run at the same time as others.

use super::engine::{Answer, DONE, Engine};
use crate::docker::owner::sweep_by;
use crate::history::Recorder;

/// The label of a dead owner: its process id is so high that no process has it.
macro_rules! dead {
    () => {
        r#""Labels":{"eldest.test.owner":"4294967295-1"}"#
    };
}

const CONTAINERS: Answer = (
    "200 OK",
    concat!(r#"[{"Id":"c1","Names":["/node"],"#, dead!(), "}]"),
);
const NETWORKS: Answer = (
    "200 OK",
    concat!(r#"[{"Id":"n1","Name":"net","#, dead!(), "}]"),
);
const VOLUMES: Answer = (
    "200 OK",
    concat!(
        r#"{"Volumes":[{"Name":"vol","Driver":"local","Mountpoint":"/","Scope":"local","Options":{},"#,
        dead!(),
        "}]}"
    ),
);
const IN_PROGRESS: Answer = (
    "409 Conflict",
    r#"{"message":"removal of container c1 is already in progress"}"#,
);
const IN_USE: Answer = (
    "403 Forbidden",
    r#"{"message":"error while removing network: network net id n1 has active endpoints"}"#,
);
const GONE: Answer = ("404 Not Found", r#"{"message":"No such thing"}"#);

fn listed(request: &str, left: bool) -> Option<Answer> {
    let of = |kind| request.starts_with("get ") && request.contains(kind);
    match (of("/containers/json"), of("/networks"), of("/volumes")) {
        (true, _, _) if left => Some(CONTAINERS),
        (_, true, _) if left => Some(NETWORKS),
        (_, _, true) if left => Some(VOLUMES),
        (_, _, true) => Some(("200 OK", r#"{"Volumes":[]}"#)),
        (true, _, _) | (_, true, _) => Some(("200 OK", "[]")),
        _ => None,
    }
}

#[tokio::test]
async fn objects_that_another_sweep_removes_are_awaited() {
    let clock = Recorder::boottime();
    let engine = Engine::start(&clock, |request, before| {
        if let Some(list) = listed(request, before < 2) {
            return list;
        }
        match (request.contains("/containers/"), before) {
            (true, _) => IN_PROGRESS,
            // The other sweep's container is still in the network for a moment.
            (false, 0) if request.contains("/networks/") => IN_USE,
            (false, 1) if request.contains("/networks/") => GONE,
            _ => DONE,
        }
    });
    let engine = engine.await;
    let swept = sweep_by(&engine.docker, 10).await.expect("all is gone");
    assert_eq!(swept, ["volume vol"], "what it removed itself");
    assert_eq!(engine.calls("delete /").len(), 5, "each until it was gone");
}

#[tokio::test]
async fn remaining_objects_are_named_with_the_engines_reason() {
    let clock = Recorder::boottime();
    let engine = Engine::start(&clock, |request, _| {
        listed(request, true).unwrap_or(if request.contains("/networks/") {
            IN_USE
        } else {
            DONE
        })
    });
    let engine = engine.await;
    let error = sweep_by(&engine.docker, 2).await.expect_err("in use");
    let error = format!("{error:?}");
    assert!(error.contains("cannot remove network net"), "{error}");
    assert!(error.contains("active endpoints"), "{error}");
    assert_eq!(
        engine
            .calls("delete ")
            .iter()
            .filter(|call| call.request.contains("/networks/"))
            .count(),
        2
    );
}
