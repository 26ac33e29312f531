//! Writes the schemas of the JSON of nodes and the command, from the types.

use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::contract::{self, command};

/// Every `code` of a refusal so far.
const CODES: &[&str] = &[
    "another_term",
    "bad_body",
    "bad_holder",
    "bad_host",
    "bad_name",
    "bad_order",
    "bad_path",
    "bad_query",
    "closed",
    "count_mismatch",
    "election",
    "etcd",
    "foreign_origin",
    "held",
    "holder_ended",
    "holder_needs_unix_socket",
    "lock_lost",
    "name_not_allowed",
    "no_evacuations",
    "no_kept_share",
    "no_locks",
    "no_metrics",
    "no_owner",
    "no_stall_timeout",
    "no_such_election",
    "no_such_lock",
    "no_such_method",
    "no_such_partitions",
    "no_such_path",
    "no_token_configured",
    "no_warm_within",
    "not_evacuated",
    "not_json",
    "not_leading",
    "not_observed_yet",
    "not_on_behalf",
    "not_waiting",
    "overloaded",
    "program_is_fixed",
    "token_needed",
    "too_large",
    "too_many_locks",
    "too_many_programs",
    "too_many_streams",
    "too_slow",
    "unguarded",
    "unknown_host",
    "which_election",
];
const STATUSES: &[&str] = &["idle", "joining", "waiting", "leading", "ending", "ended"];
const SESSIONS: &[&str] = &["connecting", "ready", "live", "lost", "closed"];

const REASONS: &[&str] = &[
    "only",
    "own_data_center",
    "nearest",
    "preferred_failed",
    "moving",
    "unmeasured",
];

type Schemas = Vec<(String, RefOr<Schema>)>;

/// Returns the types of answers, and the types within them.
pub(super) fn schemas() -> Schemas {
    let mut all = Schemas::new();
    with::<contract::Elections>(&mut all);
    with::<contract::RoleAnswer>(&mut all);
    with::<contract::Live>(&mut all);
    with::<contract::Ready>(&mut all);
    with::<contract::SteppedDown>(&mut all);
    with::<contract::Heartbeat>(&mut all);
    with::<contract::Serving>(&mut all);
    with::<contract::Warm>(&mut all);
    with::<contract::BindProgram>(&mut all);
    with::<contract::BoundProgram>(&mut all);
    with::<contract::EvacuationList>(&mut all);
    with::<contract::OrderEvacuation>(&mut all);
    with::<contract::partitions::PartitionsList>(&mut all);
    with::<contract::partitions::PartitionsState>(&mut all);
    with::<contract::partitions::KeyOwner>(&mut all);
    with::<contract::partitions::OwnPartitions>(&mut all);
    with::<contract::partitions::ForgottenShare>(&mut all);
    with::<contract::AcquireLock>(&mut all);
    with::<contract::Lock>(&mut all);
    with::<contract::LockLost>(&mut all);
    with::<contract::Locks>(&mut all);
    with::<contract::Released>(&mut all);
    with::<contract::Problem>(&mut all);
    all
}

fn with<T: ToSchema + PartialSchema>(all: &mut Schemas) {
    all.push((T::name().into_owned(), T::schema()));
    T::schemas(all);
}

/// Returns the schema of the command's output, by the names of its types.
pub(super) fn command_schema() -> Value {
    let mut all = Schemas::new();
    with::<command::Status>(&mut all);
    with::<command::PartitionOwners>(&mut all);
    with::<contract::partitions::ForgottenShare>(&mut all);
    with::<command::Change>(&mut all);
    with::<command::Evicted>(&mut all);
    with::<command::Checkpoint>(&mut all);
    with::<command::SteppedDown>(&mut all);
    with::<command::Evacuations>(&mut all);
    with::<command::ElectionVersion>(&mut all);
    with::<command::Listening>(&mut all);
    with::<command::AgentStatus>(&mut all);
    with::<command::Failed>(&mut all);
    with::<command::Examination>(&mut all);
    let all: serde_json::Map<String, Value> = all
        .into_iter()
        .map(|(name, schema)| (name, serde_json::to_value(schema).expect("JSON")))
        .collect();
    let text = serde_json::to_string(&all).expect("JSON");
    let text = text.replace("#/components/schemas/", "#/$defs/");
    let mut all: serde_json::Map<String, Value> = serde_json::from_str(&text).expect("JSON");
    finish(&mut all);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What `eldest --output json` writes",
        "description": "`eldest status` writes a `Status`, `partitions` a `PartitionOwners` or with `--forget` a `ForgottenShare`, `watch` a `Change` a line, `evict` an `Evicted`, `checkpoint` a `Checkpoint`, `step-down` a `SteppedDown`, `evacuate` an `Evacuations`, `version` an `ElectionVersion`, `serve` a \
            `Listening` first, `agent` too, `agent status` an `AgentStatus`, `doctor` an `Examination`; a command that fails writes a `Failed` to stderr. What stays: the \
            name, type and meaning of each field; every field is always there, with null where there is nothing to say. What \
            may be added: fields, and words of `event`, `kind`, `check` and `code`. Readers must accept fields and words that \
            they do not know.",
        "$defs": all,
    })
}

/// Adds facts that serde's attributes do not contain: every field of an answer is present, and the present words of
/// each enum.
pub(super) fn finish(schemas: &mut serde_json::Map<String, Value>) {
    for (name, schema) in schemas {
        if !["AcquireLock", "BindProgram", "OrderEvacuation"].contains(&name.as_str()) {
            all_required(schema);
        }
        let words: &[(&str, &[&str])] = match name.as_str() {
            "Problem" => &[("code", CODES)],
            "OwnState" => &[("status", STATUSES), ("session", SESSIONS)],
            "EndpointState" => &[
                ("lease", REASONS),
                ("observers", REASONS),
                ("data", REASONS),
            ],
            "Challenge" => &[(
                "step",
                &["suspected", "challenged", "answered", "condemned"],
            )],
            "MeasuredEndpoint" => &[("preferred", REASONS)],
            _ => &[],
        };
        for (field, words) in words {
            schema["properties"][field]["examples"] = json!(words);
        }
        on_one_line(schema);
    }
}

fn all_required(schema: &mut Value) {
    for part in schema
        .get_mut("allOf")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        all_required(part);
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let names: Vec<&String> = properties.keys().collect();
        schema["required"] = json!(names);
    }
}

/// Joins the lines of a description, which break where the source's comment does.
fn on_one_line(schema: &mut Value) {
    match schema {
        Value::Object(rules) => rules.values_mut().for_each(on_one_line),
        Value::Array(rules) => rules.iter_mut().for_each(on_one_line),
        Value::String(text) => *text = text.replace('\n', " "),
        _ => {}
    }
}
