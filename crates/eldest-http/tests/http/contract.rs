//! Holds every answer that a test gets against the description that the node serves of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use eldest::Session;
use eldest_http::Node;
use serde_json::{Map, Value};

use crate::caller::{Answer, ask, get};
use crate::stage::{Result, Server, options};

static DESCRIPTION: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../src/openapi.json")).expect("JSON"));

fn paths() -> &'static Map<String, Value> {
    DESCRIPTION["paths"].as_object().expect("paths")
}

/// The described path that a request's path is one of.
fn described(path: &str) -> Option<&'static Map<String, Value>> {
    let path = path.split('?').next().unwrap_or_default();
    let fits = |template: &str| {
        let (mut ours, mut theirs) = (template.split('/'), path.split('/'));
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (Some(our), Some(their)) if our == their => {}
                (Some(our), Some(their)) if our.starts_with('{') && !their.is_empty() => {}
                _ => return false,
            }
        }
    };
    let found = paths().iter().find(|(template, _)| fits(template));
    found.and_then(|(_, operations)| operations.as_object())
}

/// Status, type and body of an answer are what is described.
pub(crate) fn check(method: &str, path: &str, answer: &Answer) {
    let told = format!("{method} {path}: {answer:?}");
    let method = match method {
        "HEAD" => "get".to_owned(),
        other => other.to_ascii_lowercase(),
    };
    let operation = described(path).and_then(|operations| operations.get(&method));
    let Some(operation) = operation else {
        // Who calls is checked first.
        assert!(
            [400, 401, 403, 404, 405, 421].contains(&answer.status),
            "not described: {told}"
        );
        return lock_table(&schema("Problem"), &answer.json(), &told);
    };
    let described = &operation["responses"][answer.status.to_string()];
    let content = described["content"].as_object();
    let content = content.unwrap_or_else(|| panic!("this status is not described: {told}"));
    let kind = answer.header("content-type").unwrap_or_default();
    let kind = content
        .get(kind)
        .unwrap_or_else(|| panic!("this type is not described: {told}"));
    if answer
        .header("content-type")
        .is_some_and(|kind| kind.ends_with("json"))
        && !answer.body.is_empty()
    {
        lock_table(&kind["schema"], &answer.json(), &told);
    }
}

pub(crate) fn schema(name: &str) -> Value {
    serde_json::json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Whether a value is as a schema says; panics at what it does not understand of one.
fn fault(schema: &Value, value: &Value) -> Option<String> {
    let rules = schema.as_object().expect("a schema");
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    rules
        .iter()
        .find_map(|(rule, wanted)| match (rule.as_str(), value) {
            ("$ref", _) => {
                let pointer = wanted
                    .as_str()
                    .and_then(|to| to.strip_prefix('#'))
                    .expect("a pointer");
                fault(DESCRIPTION.pointer(pointer).expect("it is there"), value)
            }
            ("anyOf", _) => {
                let faults = wanted
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(|one| fault(one, value));
                let faults: Vec<_> = faults.collect();
                faults
                    .iter()
                    .all(Option::is_some)
                    .then(|| format!("{faults:?}"))
            }
            ("type", _) => {
                let fits = wanted == kind
                    || wanted
                        .as_array()
                        .is_some_and(|all| all.iter().any(|one| one == kind));
                (!fits).then(|| format!("{value} is not {wanted}"))
            }
            ("enum", _) => {
                let known = wanted.as_array().expect("a list").contains(value);
                (!known).then(|| format!("{value} is not one of {wanted}"))
            }
            ("const", _) => (value != wanted).then(|| format!("{value} is not {wanted}")),
            ("minimum", Value::Number(number)) => (number.as_f64() < wanted.as_f64())
                .then(|| format!("{value} is less than {wanted}")),
            ("maximum", Value::Number(number)) => (number.as_f64() > wanted.as_f64())
                .then(|| format!("{value} is more than {wanted}")),
            ("required", Value::Object(members)) => {
                let mut names = wanted
                    .as_array()
                    .expect("a list")
                    .iter()
                    .filter_map(Value::as_str);
                let missing = names.find(|name| !members.contains_key(*name));
                missing.map(|name| format!("{name} is missing"))
            }
            ("properties", Value::Object(members)) => {
                let mut known = members
                    .iter()
                    .filter_map(|(name, value)| Some((name, wanted.get(name)?, value)));
                known.find_map(|(name, schema, value)| {
                    Some(format!("{name}: {}", fault(schema, value)?))
                })
            }
            ("additionalProperties", Value::Object(members)) => {
                let known = |name: &String| {
                    rules
                        .get("properties")
                        .is_some_and(|known| known.get(name).is_some())
                };
                let mut others = members.iter().filter(|(name, _)| !known(name));
                others.find_map(|(name, value)| match wanted {
                    Value::Bool(_) => Some(format!("{name} is not described")),
                    schema => fault(schema, value),
                })
            }
            ("items", Value::Array(items)) => items.iter().find_map(|item| fault(wanted, item)),
            (
                "description"
                | "default"
                | "minimum"
                | "maximum"
                | "required"
                | "properties"
                | "additionalProperties"
                | "items",
                _,
            ) => None,
            _ => panic!("a schema with {rule}"),
        })
}

/// Fails unless the value is as the schema says.
pub(crate) fn lock_table(schema: &Value, value: &Value, told: &str) {
    if let Some(fault) = fault(schema, value) {
        panic!("{fault}: {told}");
    }
}

#[test]
fn the_check_of_the_contract_finds_what_is_wrong() {
    let good = serde_json::json!({ "fencing_token": 1, "identity": "a", "began_unix_ms": null, "ended_unix_ms": 3 });
    assert_eq!(fault(&schema("Term"), &good), None);
    for (name, value) in [
        ("fencing_token", serde_json::json!("1")),
        ("fencing_token", serde_json::json!(0)),
        ("fencing_token", Value::Null),
        ("identity", Value::Null),
        ("more", serde_json::json!(1)),
    ] {
        let mut bad = good.clone();
        bad[name] = value;
        assert!(fault(&schema("Term"), &bad).is_some(), "{bad}");
    }
    let mut bad = good;
    bad.as_object_mut().expect("an object").remove("identity");
    assert!(fault(&schema("Term"), &bad).is_some());
    let live = serde_json::json!({ "ready": true, "elections": { "e": 1 } });
    assert!(fault(&schema("Ready"), &live).is_some());
    assert!(
        fault(
            &serde_json::json!({ "type": "array", "items": { "type": "null" } }),
            &serde_json::json!([null, 1])
        )
        .is_some()
    );
}

/// Every route and method of the router, by its source.
fn routed() -> BTreeMap<String, BTreeSet<String>> {
    let source = include_str!("../../src/lib.rs");
    let routes = source.split(".route(").skip(1).map(|route| {
        let mut parts = route.split('"');
        let path = parts.nth(1).expect("a path");
        let method = parts.next().expect("a method").trim_start_matches(", ");
        let method = method.split('(').next().expect("its name");
        (path.to_owned(), BTreeSet::from([method.to_owned()]))
    });
    routes.collect()
}

#[test]
fn the_description_names_exactly_the_paths_that_there_are() {
    let all = paths().iter().map(|(path, operations)| {
        let methods = operations.as_object().expect("operations").keys();
        (path.clone(), methods.cloned().collect())
    });
    assert_eq!(routed(), all.collect());
}

#[tokio::test]
async fn the_description_is_served_and_every_path_of_it_answers() -> Result {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
    let node = Node::new().stands_in(&session.election("e")?);
    let server = Server::plain(node.metrics(String::new)).await?;
    let description = get(server.at, "/openapi.json").await?;
    assert_eq!(description.json(), *DESCRIPTION);
    for (path, operations) in paths() {
        // It does not end by itself.
        if path.ends_with("/events") {
            continue;
        }
        let path = path
            .replace("{name}", "e")
            .replace("{resource}", "r")
            .replace("{lock}", "l");
        for method in operations.as_object().expect("operations").keys() {
            let answer = ask(
                server.at,
                &method.to_uppercase(),
                &path,
                "Content-Length: 0\r\n",
            )
            .await?;
            if answer.status == 404 {
                assert_ne!(answer.problem(), "no_such_path", "{method} {path}");
            }
            assert_ne!(answer.status, 405, "{method} {path}");
        }
    }
    server.stop().await
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere() -> Result {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
    let server = Server::plain(Node::new().stands_in(&session.election("e")?)).await?;
    let page = get(server.at, "/").await?;
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self'"),
        "{policy}"
    );
    for part in ["page.js", "page.css"] {
        assert!(page.body.contains(&format!("\"{part}\"")), "{part}");
        let part = get(server.at, &format!("/{part}")).await?;
        assert_eq!(part.status, 200);
        for foreign in ["http://", "https://", "//cdn", "innerHTML", "eval("] {
            assert!(
                !part.body.contains(foreign) && !page.body.contains(foreign),
                "{foreign}"
            );
        }
    }
    server.stop().await
}

/// A code that is described is one that somewhere is answered; whether all are described, each answer shows.
#[test]
fn no_code_is_described_that_there_is_not() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let files = std::fs::read_dir(folder).expect("src");
    let sources = files.map(|file| file.expect("readable").path());
    let sources = sources.filter(|path| path.extension().is_some_and(|kind| kind == "rs"));
    let source: String = sources
        .map(|path| std::fs::read_to_string(path).expect("text"))
        .collect();
    let codes = &DESCRIPTION["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
    for code in codes.as_array().expect("codes") {
        assert!(source.contains(&code.to_string()), "{code}");
    }
}
