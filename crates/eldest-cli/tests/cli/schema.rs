//! Checks every object that the commands write against command.schema.json.

use std::sync::LazyLock;

use boon::{Compiler, Schemas};
use eldest_testing::Etcd;
use serde_json::{Value, json};

use crate::common::{Node, Result, at, words};

const FILE: &str = include_str!("../../../eldest-http/src/command.schema.json");

fn published() -> Value {
    serde_json::from_str(FILE).expect("command.schema.json")
}

/// The published schema, changed so that it refuses every field that it does not name.
static STRICT: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = published();
    let parts = schema["$defs"].as_object_mut().expect("parts");
    for (name, part) in parts {
        // A `Member` is written only as a part of a `Candidate`.
        let whole = part.get("properties").is_some() || part.get("allOf").is_some();
        if whole && name != "Member" {
            part["unevaluatedProperties"] = json!(false);
        }
    }
    schema
});

/// Returns the part of the schema for an object, recognized by a field that no other object has.
fn part(value: &Value) -> &'static str {
    let parts = [
        ("queues", "Status"),
        ("partitions", "PartitionOwners"),
        ("forgotten", "ForgottenShare"),
        ("event", "Change"),
        ("evicted", "Evicted"),
        ("removed", "Checkpoint"),
        ("stepped_down", "SteppedDown"),
        ("evacuations", "Evacuations"),
        ("newest_version", "ElectionVersion"),
        ("findings", "Examination"),
        ("listening", "Listening"),
        ("guarded_sessions", "AgentStatus"),
        ("error", "Failed"),
    ];
    let known = parts.iter().find(|(member, _)| value.get(member).is_some());
    known.unwrap_or_else(|| panic!("no command's: {value}")).1
}

/// Returns why the value does not match that part of the schema, or `None` if it does.
fn fault(schema: &Value, part: &str, value: &Value) -> Option<String> {
    const WHOLE: &str = "command.schema.json";
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    let whole = json!({ "$defs": schema["$defs"] });
    compiler.add_resource(WHOLE, whole).expect("a schema");
    let schema = compiler.compile(&format!("{WHOLE}#/$defs/{part}"), &mut schemas);
    let schema = schema.expect("a schema");
    let fault = schemas.validate(value, schema).err()?;
    Some(format!("{fault:#}"))
}

/// Parses a line that a command wrote, and asserts that it matches the schema.
#[track_caller]
pub(crate) fn line(text: &str) -> Value {
    let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    if let Some(fault) = fault(&STRICT, part(&value), &value) {
        panic!("{fault}: {value}");
    }
    value
}

#[tokio::test]
async fn first_line_of_a_node_matches_the_schema() -> Result {
    let etcd = Etcd::start().await?;
    let args = words("serve jobs --listen 127.0.0.1:0 --output json");
    let mut node = Node::start("a", at(&etcd, &args))?;
    let address = node.json().await?;
    let listening = address["listening"].as_str();
    assert!(listening.is_some_and(|at| at.starts_with("127.0.0.1:")));
    node.close().await
}

/// docs/cli.md promises that fields may be added and none is removed.
#[tokio::test]
async fn schema_accepts_added_fields_and_refuses_missing_ones() -> Result {
    let whole = json!({ "error": { "exit_code": 2, "code": "usage", "detail": "..." } });
    let schema = published();
    assert_eq!(fault(&schema, "Failed", &whole), None);
    let mut more = whole.clone();
    more["error"]["new"] = json!(1);
    assert_eq!(fault(&schema, "Failed", &more), None);
    assert!(
        fault(&STRICT, "Failed", &more).is_some(),
        "the tests notice it"
    );
    let less = json!({ "error": { "exit_code": 2, "code": "usage" } });
    assert!(fault(&schema, "Failed", &less).is_some());
    Ok(())
}
