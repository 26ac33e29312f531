//! Checks every answer of these tests against the description that the node serves of itself.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use boon::{Compiler, Schemas};
use eldest::Session;
use eldest_http::Node;
use serde_json::{Map, Value, json};

use crate::caller::{Answer, ask, get};
use crate::stage::{Result, Server, options};

static DESCRIPTION: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../src/openapi.json")).expect("JSON"));

const SCHEMAS: &str = "#/components/schemas/";

fn paths() -> &'static Map<String, Value> {
    DESCRIPTION["paths"].as_object().expect("paths")
}

/// Returns the operations of the described path that matches a request's path. Because names may contain slashes, the
/// paths with the most fixed words win. For a lock, the method decides.
fn described(path: &str) -> Vec<&'static Map<String, Value>> {
    let path = path.split('?').next().unwrap_or_default();
    let path: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let template: Vec<&str> = template.split('/').collect();
        let many = (path.len() + 1)
            .checked_sub(template.len())
            .filter(|many| *many > 0)?;
        let mut rest = path.iter();
        let mut words = 0;
        for part in template {
            match part {
                "{name}" | "{resource}" => rest.nth(many - 1).map(drop)?,
                "{lock}" => rest.next().map(drop)?,
                word => {
                    words += 1;
                    rest.next().filter(|given| **given == word)?;
                }
            }
        }
        rest.next().is_none().then_some(words)
    };
    let found = paths().iter();
    let found = found.filter_map(|(template, all)| Some((fits(template)?, all.as_object()?)));
    let found: Vec<_> = found.collect();
    let most = found.iter().map(|(words, _)| *words).max();
    let best = found.into_iter().filter(|(words, _)| Some(*words) == most);
    best.map(|(_, operations)| operations).collect()
}

/// Asserts that status, type and body of an answer match the description.
pub(crate) fn check(method: &str, path: &str, answer: &Answer) {
    let answered = format!("{method} {path}: {answer:?}");
    let guessing = answer.header("x-content-type-options");
    assert_eq!(guessing, Some("nosniff"), "{answered}");
    let operations = described(path);
    if method == "OPTIONS" && answer.status == 204 {
        return assert!(
            allowed(answer).is_superset(&methods(&operations)),
            "{answered}"
        );
    }
    let method = match method {
        "HEAD" => "get".to_owned(),
        other => other.to_ascii_lowercase(),
    };
    let operation = operations
        .iter()
        .find_map(|operations| operations.get(&method));
    let Some(operation) = operation else {
        // The router checks the caller's access before the method.
        assert!(
            [400, 401, 403, 404, 405, 421].contains(&answer.status),
            "not described: {answered}"
        );
        return holds("Problem", &answer.json(), &answered);
    };
    let described = &operation["responses"][answer.status.to_string()];
    let content = described["content"].as_object();
    let content = content.unwrap_or_else(|| panic!("this status is not described: {answered}"));
    let kind = answer.header("content-type").unwrap_or_default();
    let described = content.get(kind);
    let described = described.unwrap_or_else(|| panic!("this type is not described: {answered}"));
    if kind.ends_with("json") && !answer.body.is_empty() {
        let schema = described["schema"]["$ref"].as_str();
        let name = schema.and_then(|to| to.strip_prefix(SCHEMAS));
        if let Some(name) = name {
            holds(name, &answer.json(), &answered);
        }
    }
}

/// Returns the methods that the header `allow` names.
fn allowed(answer: &Answer) -> BTreeSet<String> {
    let allow = answer.header("allow").expect("the header `allow`");
    allow.split(',').map(str::to_ascii_uppercase).collect()
}

/// Returns the described methods, with `OPTIONS` and `HEAD`, which the router adds.
fn methods(operations: &[&Map<String, Value>]) -> BTreeSet<String> {
    let described = operations.iter().copied().flatten();
    let mut all: BTreeSet<String> = described
        .map(|(name, _)| name.to_ascii_uppercase())
        .collect();
    all.insert("OPTIONS".to_owned());
    if all.contains("GET") {
        all.insert("HEAD".to_owned());
    }
    all
}

/// The schemas without room for additions: clients must accept unknown fields, but the node may send only described
/// ones.
static STRICT: LazyLock<Value> = LazyLock::new(|| {
    let mut components = DESCRIPTION["components"].clone();
    let schemas = components["schemas"].as_object_mut().expect("schemas");
    let parts = ["OwnState"];
    for (name, schema) in schemas {
        if !parts.contains(&name.as_str()) {
            schema["unevaluatedProperties"] = false.into();
        }
    }
    let code = &mut components["schemas"]["Problem"]["properties"]["code"];
    code["enum"] = code["examples"].clone();
    for (schema, words) in [
        ("OwnState", "status"),
        ("OwnState", "session"),
        ("EndpointState", "lease"),
        ("EndpointState", "observers"),
        ("EndpointState", "data"),
    ] {
        let field = &mut components["schemas"][schema]["properties"][words];
        let mut all = field["examples"].clone();
        if field["type"].is_array() {
            all.as_array_mut().expect("words").push(Value::Null);
        }
        field["enum"] = all;
    }
    components
});

/// Returns why the value does not match the schema of that name, or `None` if it does.
fn fault(name: &str, value: &Value) -> Option<String> {
    const WHOLE: &str = "description.json";
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    let whole = json!({ "components": *STRICT });
    compiler.add_resource(WHOLE, whole).expect("a schema");
    let schema = compiler.compile(&format!("{WHOLE}{SCHEMAS}{name}"), &mut schemas);
    let schema = schema.expect("a schema");
    let fault = schemas.validate(value, schema).err()?;
    Some(format!("{fault:#}"))
}

/// Fails unless the value matches the schema of that name.
pub(crate) fn holds(name: &str, value: &Value, answered: &str) {
    if let Some(fault) = fault(name, value) {
        panic!("not a {name}: {fault}: {answered}");
    }
}

#[test]
fn the_check_of_the_contract_finds_what_is_wrong() {
    let good = json!({
        "fencing_token": 1, "identity": "a", "began_unix_ms": null, "ended_unix_ms": 3,
        "ended_by_own_clock": true, "unknown_since_unix_ms": null, "unknown_until_unix_ms": null,
    });
    assert_eq!(fault("Term", &good), None);
    for (name, value) in [
        ("fencing_token", json!(0)),
        ("identity", Value::Null),
        ("more", json!(1)),
    ] {
        let mut bad = good.clone();
        bad[name] = value;
        assert!(fault("Term", &bad).is_some(), "{bad}");
    }
    let ready = json!({ "ready": true, "elections": { "e": 1 }, "reasons": {} });
    assert!(fault("Ready", &ready).is_some());
    let refused =
        json!({ "type": "about:blank", "title": "", "status": 400, "code": "bad", "detail": "" });
    assert!(fault("Problem", &refused).is_some(), "an unknown code");
}

/// A client that validates answers by the description must not refuse fields of a later node.
#[test]
fn the_description_leaves_room_for_fields_that_are_added() {
    let text = DESCRIPTION.to_string();
    let requests = text.matches("\"additionalProperties\":false").count();
    assert_eq!(requests, 3, "only requests refuse what is unknown");
}

/// The router's paths are read from its source. Where the router parses the rest of a path itself, all described paths
/// with the same beginning count.
#[test]
fn description_names_every_path() {
    let source = include_str!("../../src/lib.rs");
    let routed = source.split(".route(").skip(1);
    let routed = routed.map(|route| route.split('"').nth(1).expect("a path"));
    for route in routed {
        let fits = match route.split_once("{*") {
            Some((begin, _)) => paths().keys().any(|path| path.starts_with(begin)),
            None => paths().contains_key(route),
        };
        assert!(fits, "{route} is not described");
    }
}

#[tokio::test]
async fn the_description_is_served_and_every_path_of_it_answers() -> Result {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
    let node = Node::new().works_in(&session.election("e")?);
    let server = Server::plain(node.metrics(String::new)).await?;
    let description = get(server.at, "/openapi.json").await?;
    assert_eq!(description.json(), *DESCRIPTION);
    for (path, operations) in paths() {
        let path = path
            .replace("{name}", "e")
            .replace("{resource}", "r")
            .replace("{lock}", "l");
        // `check` compares the methods with the description.
        assert_eq!(ask(server.at, "OPTIONS", &path, "").await?.status, 204);
        // The stream of events does not end by itself.
        if path.ends_with("/events") {
            continue;
        }
        for method in operations.as_object().expect("operations").keys() {
            let method = method.to_uppercase();
            let answer = ask(server.at, &method, &path, "Content-Length: 0\r\n").await?;
            if answer.status == 404 {
                assert_ne!(answer.problem(), "no_such_path", "{method} {path}");
            }
            assert_ne!(answer.status, 405, "{method} {path}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere() -> Result {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
    let server = Server::plain(Node::new().works_in(&session.election("e")?)).await?;
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
    Ok(())
}

/// Each described code must occur in an answer; every answer shows whether its own code is described.
#[test]
fn every_described_code_exists() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let files = std::fs::read_dir(folder).expect("src");
    let sources = files.map(|file| file.expect("readable").path());
    let sources = sources.filter(|path| path.extension().is_some_and(|kind| kind == "rs"));
    let source: String = sources
        .map(|path| std::fs::read_to_string(path).expect("text"))
        .collect();
    let codes = &DESCRIPTION["components"]["schemas"]["Problem"]["properties"]["code"]["examples"];
    for code in codes.as_array().expect("codes") {
        assert!(source.contains(&code.to_string()), "{code}");
    }
}
