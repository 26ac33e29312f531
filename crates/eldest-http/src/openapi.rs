//! Writes the description of the interface from the types of its answers: `openapi.json`, which nodes serve, and
//! `command.schema.json` of what the command writes. Tests compare the committed files with it; to renew them:
//! `ELDEST_RENEW=1 cargo test -p eldest-http --lib openapi`.

mod partitions;
mod schemas;

use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ComponentsBuilder, ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ContentBuilder, HeaderBuilder, HttpMethod, InfoBuilder, OpenApiBuilder, Paths, Ref, RefOr,
    Required, Response, ResponseBuilder,
};

use self::schemas::{command_schema, finish, schemas};
use super::contract;

const ABOUT: &str = "The state of elections and partitions, and locks. A node of the leader-election library eldest answers from its memory and by \
    its own clock. A 200 is true for the moment of the answer: fence what must never happen twice, with its \
    `fencing_token`.\n\n\
    What stays: each path and operation, and the name, type and meaning of each field; every field of an answer is always \
    present, with null where there is no value. What may be added: paths, operations, fields, and words of `status`, \
    `session` and `code`. Clients must accept fields and words that they do not know. A request that changes something \
    refuses a parameter that it does not know.\n\n\
    A slash in the name of an election or a lock is written as it is or as `%2F`, which always belongs to the name. Each \
    path answers HEAD where it answers GET, and OPTIONS with 204 and the header `allow`.";

const EVENTS: &str = "Events `state`, whose data is an `ElectionState`: at once, and after every change. After 5 s without one \
    follows an event `alive`, so a caller that hears nothing for longer knows that the node is stopped or cut off.";
const CONNECTION: &str = "Held by the connection: a line with a `Lock` at once and every `ttl_ms / 4`; the last line is a \
    `LockLost`.";

/// An operation of the interface: its id, its tag, its summary.
struct Op(OperationBuilder);

impl Op {
    /// Describes an operation. Every request may be malformed, and may call the node by a wrong name.
    fn new(id: &str, tag: &str, summary: &str) -> Self {
        let new = OperationBuilder::new()
            .operation_id(Some(id))
            .tag(tag)
            .summary(Some(summary));
        Self(new)
            .refuses("400", "The request is malformed, or has no header `host`.")
            .refuses(
                "421",
                "The request calls the node by a name that is not its own.",
            )
            .refuses("503", "The node answers too many requests at once.")
    }

    /// Describes an operation that changes state, so it may need a token.
    fn changing(id: &str, tag: &str, summary: &str) -> Self {
        let open = SecurityRequirement::default();
        let token = SecurityRequirement::new::<_, _, String>("token", []);
        let Self(new) = Self::new(id, tag, summary)
            .refuses("401", "The token is missing or wrong.")
            .refuses("403", "The request came from a page of another origin, or the node listens beyond loopback and has no token.");
        Self(new.security(open).security(token))
    }

    fn takes(self, parameter: Parameter) -> Self {
        Self(self.0.parameter(parameter))
    }

    /// Describes a JSON body of that type; any other body is refused.
    fn reads<T: ToSchema>(self) -> Self {
        let asked = ContentBuilder::new().schema(Some(reference::<T>())).build();
        let body = RequestBodyBuilder::new().required(Some(Required::True));
        let body = body.content("application/json", asked).build();
        Self(self.0.request_body(Some(body)))
            .refuses("408", "The body did not arrive in time.")
            .refuses("413", "The body is too large.")
            .refuses("415", "The body is not JSON.")
    }

    fn answers<T: ToSchema>(self, status: &str, text: &str) -> Self {
        self.content(status, text, "application/json", reference::<T>())
    }

    fn refuses(self, status: &str, text: &str) -> Self {
        let kind = "application/problem+json";
        self.content(status, text, kind, reference::<contract::Problem>())
    }

    fn text(self, kind: &str, text: &str) -> Self {
        self.content("200", text, kind, string().into())
    }

    fn content(self, status: &str, text: &str, kind: &str, schema: RefOr<Schema>) -> Self {
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let response = ResponseBuilder::new()
            .description(text)
            .content(kind, content);
        self.response(status, response.build())
    }

    fn response(self, status: &str, response: Response) -> Self {
        Self(self.0.response(status, response))
    }

    fn at(self, paths: &mut Paths, method: HttpMethod, path: &str) {
        paths.add_path_operation(path, vec![method], self.0.build());
    }
}

fn reference<T: ToSchema>() -> RefOr<Schema> {
    Ref::from_schema_name(T::name()).into()
}

fn string() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .build()
        .into()
}

fn in_path(name: &str, text: &str) -> Parameter {
    parameter(ParameterIn::Path, name, text, string())
}

fn in_query(name: &str, text: &str, schema: Schema) -> Parameter {
    parameter(ParameterIn::Query, name, text, schema)
}

fn parameter(place: ParameterIn, name: &str, text: &str, schema: Schema) -> Parameter {
    let needed = match place {
        ParameterIn::Path => Required::True,
        _ => Required::False,
    };
    let new = ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(needed);
    new.description(Some(text)).schema(Some(schema)).build()
}

fn election() -> Parameter {
    in_path(
        "name",
        "The election's name; slashes may be written as they are.",
    )
}

fn resource() -> Parameter {
    in_path(
        "resource",
        "The lock's name; slashes may be written as they are.",
    )
}

fn lock() -> Parameter {
    in_path("lock", "The lock's id, from the answer to its owner.")
}

/// Names the process for which a caller asks whether it may act.
fn holder() -> Parameter {
    let number = ObjectBuilder::new().schema_type(Type::Integer).build();
    in_query(
        "holder_pid",
        "Over the node's Unix socket: the bound process for which the caller asks. Without it, the caller's own.",
        number.into(),
    )
}

fn probes(paths: &mut Paths) {
    let asked = || {
        in_query(
            "election",
            "The election's name; required if the node shows several.",
            string(),
        )
    };
    let role = |id: &str, summary: &str, yes: &str, no: &str| {
        Op::new(id, "probes", summary)
            .takes(asked())
            .answers::<contract::RoleAnswer>("200", yes)
            .answers::<contract::RoleAnswer>("503", no)
            .refuses("404", "No such election.")
    };
    role(
        "checkLeader",
        "Whether this node leads and serves",
        "It leads and serves.",
        "It does not lead, or does not serve yet.",
    )
    .takes(holder())
    .at(paths, HttpMethod::Get, "/leader");
    role(
        "checkPrimary",
        "The same as /leader",
        "It leads and serves.",
        "It does not lead, or does not serve yet.",
    )
    .takes(holder())
    .at(paths, HttpMethod::Get, "/primary");
    let follows = "It does not lead, and no term of its own winds up.";
    role(
        "checkFollower",
        "Whether this node does not lead",
        follows,
        "It leads, or its term winds up.",
    )
    .at(paths, HttpMethod::Get, "/follower");
    Op::new("checkLive", "probes", "Whether the process can still work")
        .answers::<contract::Live>("200", "It can.")
        .answers::<contract::Live>("503", "A session is closed; only a new process helps.")
        .at(paths, HttpMethod::Get, "/live");
    Op::new("checkReady", "probes", "Whether the node is ready")
        .takes(in_query(
            "election",
            "The election's name; without it, all elections.",
            string(),
        ))
        .answers::<contract::Ready>("200", "It is ready.")
        .answers::<contract::Ready>("503", "It is not ready.")
        .refuses("404", "No such election.")
        .at(paths, HttpMethod::Get, "/ready");
}

fn elections(paths: &mut Paths) {
    let get = HttpMethod::Get;
    Op::new(
        "listElections",
        "elections",
        "Lists all elections that this node shows",
    )
    .answers::<contract::Elections>("200", "The elections.")
    .at(paths, get.clone(), "/v1/elections");
    Op::new(
        "getElection",
        "elections",
        "Shows roster, leader, tokens, the node's own rank and the last terms",
    )
    .takes(election())
    .answers::<contract::ElectionState>("200", "The election.")
    .refuses("404", "No such election.")
    .at(paths, get.clone(), "/v1/elections/{name}");
    Op::new(
        "followElection",
        "elections",
        "Streams an election's state as server-sent events",
    )
    .takes(election())
    .text("text/event-stream", EVENTS)
    .refuses("404", "No such election.")
    .refuses("503", "Too many callers follow events.")
    .at(paths, get.clone(), "/v1/elections/{name}/events");
    Op::new(
        "followElections",
        "elections",
        "Streams the state of all elections as server-sent events",
    )
    .text("text/event-stream", EVENTS)
    .refuses("503", "Too many callers follow events.")
    .at(paths, get, "/v1/events");
    let summary = "Ends this node's term, once its successor is warm if the election waits for that; the node joins at the end of the queue";
    Op::changing("stepDown", "elections", summary)
        .takes(election())
        .takes(token("Ends only the term with this token."))
        .answers::<contract::SteppedDown>("200", "The key is gone.")
        .answers::<contract::SteppedDown>("202", "The key is deleted in the background.")
        .refuses("404", "No such election.")
        .refuses(
            "409",
            "This node does not lead, or leads under another token.",
        )
        .at(paths, HttpMethod::Post, "/v1/elections/{name}/step_down");
    heartbeat(paths);
    serving(paths);
    warm(paths);
}

fn token(meaning: &str) -> Parameter {
    let token = ObjectBuilder::new().schema_type(Type::Integer);
    in_query("fencing_token", meaning, token.build().into())
}

fn serving(paths: &mut Paths) {
    let summary = "Tells the node that the program on whose behalf it leads is ready";
    Op::changing("serve", "elections", summary)
        .takes(election())
        .takes(token("Concerns only the term with this token."))
        .answers::<contract::Serving>("200", "The leader serves.")
        .answers::<contract::Serving>("202", "The leader serves; it continues to announce that.")
        .refuses("404", "No such election.")
        .refuses(
            "409",
            "The node does not lead on behalf of a program, or leads under another token.",
        )
        .at(paths, HttpMethod::Post, "/v1/elections/{name}/serving");
}

fn warm(paths: &mut Paths) {
    let says = [
        (
            "warm",
            HttpMethod::Post,
            "Tells the node that its program is prepared for the node's term",
        ),
        (
            "cool",
            HttpMethod::Delete,
            "Tells the node that its program is no longer prepared",
        ),
    ];
    for (id, method, summary) in says {
        Op::changing(id, "elections", summary)
            .takes(election())
            .answers::<contract::Warm>("200", "All nodes see it.")
            .refuses("404", "No such election.")
            .refuses(
                "409",
                "The node does not wait on behalf of a program, or its election has no limit for a warm successor.",
            )
            .refuses("502", "etcd refused the announcement.")
            .refuses("503", "etcd did not answer; try again.")
            .at(paths, method, "/v1/elections/{name}/warm");
    }
}

fn heartbeat(paths: &mut Paths) {
    let summary = "Tells the node that the program on whose behalf it leads works";
    Op::changing("beat", "elections", summary)
        .takes(election())
        .answers::<contract::Heartbeat>("200", "The node has taken note.")
        .refuses("404", "No such election.")
        .refuses(
            "409",
            "The node does not lead on behalf of a program, or has no stall timeout.",
        )
        .at(paths, HttpMethod::Post, "/v1/elections/{name}/heartbeat");
}

fn program(paths: &mut Paths) {
    let summary = "Binds the elections to the life of a program, over the node's Unix socket";
    Op::changing("bindProgram", "elections", summary)
        .reads::<contract::BindProgram>()
        .answers::<contract::BoundProgram>(
            "200",
            "Bound: when every bound program has ended, the node leaves its elections and partitions at once, until a program binds itself.",
        )
        .refuses(
            "409",
            "The node leads no election and owns no partitions on behalf of a program, or only on behalf of the one of its option --guard-pid.",
        )
        .refuses("503", "Too many programs are bound.")
        .at(paths, HttpMethod::Post, "/v1/program");
}

fn evacuations(paths: &mut Paths) {
    let none = "The node takes no orders.";
    let data_center = || {
        in_path(
            "name",
            "The data centre's name, as its nodes announce it; slashes may be written as they are.",
        )
    };
    let order = |id, summary| {
        Op::changing(id, "evacuations", summary)
            .takes(data_center())
            .refuses("502", "etcd refused.")
            .refuses("503", "etcd is out of reach, or the node is stopping.")
    };
    Op::new(
        "listEvacuations",
        "evacuations",
        "Lists the data centres that are evacuated",
    )
    .answers::<contract::EvacuationList>("200", "The orders.")
    .refuses("404", none)
    .at(paths, HttpMethod::Get, "/v1/evacuations");
    order(
        "evacuate",
        "Evacuates a data centre, and replaces an order that is already in force",
    )
    .reads::<contract::OrderEvacuation>()
    .answers::<contract::Evacuation>("200", "The order is in force.")
    .refuses("404", none)
    .at(paths, HttpMethod::Put, "/v1/evacuations/{name}");
    order("liftEvacuation", "Lifts an order; nobody moves back")
        .answers::<contract::Evacuation>("200", "The order that was lifted.")
        .refuses(
            "404",
            "The data centre is not evacuated, or the node takes no orders.",
        )
        .at(paths, HttpMethod::Delete, "/v1/evacuations/{name}");
}

fn locks(paths: &mut Paths) {
    let none = "The node offers no locks.";
    let no_such = "No such lock, or the node offers no locks.";
    Op::new(
        "listLocks",
        "locks",
        "Lists the locks that this node keeps for others",
    )
    .answers::<contract::Locks>("200", "The locks.")
    .refuses("404", none)
    .at(paths, HttpMethod::Get, "/v1/locks");
    acquire()
        .refuses("404", none)
        .at(paths, HttpMethod::Post, "/v1/locks/{resource}");
    Op::changing("releaseLock", "locks", "Releases a lock")
        .takes(resource())
        .takes(lock())
        .answers::<contract::Released>("200", "It is free.")
        .answers::<contract::Released>("202", "It is released in the background.")
        .refuses("404", no_such)
        .at(paths, HttpMethod::Delete, "/v1/locks/{resource}/{lock}");
    Op::changing("renewLock", "locks", "Keeps a lock for `ttl_ms` more")
        .takes(resource())
        .takes(lock())
        .answers::<contract::Lock>("200", "It is held.")
        .refuses("404", no_such)
        .refuses("410", "It was lost: stop the work.")
        .at(paths, HttpMethod::Put, "/v1/locks/{resource}/{lock}/renew");
}

fn acquire() -> Op {
    let text = "The lock's URL: DELETE it to release the lock, append `/renew` to renew it.";
    let location = HeaderBuilder::new()
        .schema(Some(string()))
        .description(Some(text))
        .build();
    let held = ContentBuilder::new()
        .schema(Some(reference::<contract::Lock>()))
        .build();
    let created = ResponseBuilder::new()
        .description("Held by renewals.")
        .content("application/json", held)
        .header("location", location);
    Op::changing("acquireLock", "locks", "Acquires a lock")
        .takes(resource())
        .reads::<contract::AcquireLock>()
        .content("200", CONNECTION, "application/x-ndjson", string().into())
        .response("201", created.build())
        .refuses("409", "Others held it for the whole wait, an election has the name, or the process to which it was to be bound ended meanwhile.")
        .refuses("410", "It was acquired, but lost at once.")
        .refuses("502", "etcd refused.")
        .refuses(
            "503",
            "etcd is out of reach, the node is stopping, or too many callers wait.",
        )
}

fn others(paths: &mut Paths) {
    let get = HttpMethod::Get;
    Op::new("showPage", "page", "Shows the elections to people, live")
        .text("text/html; charset=utf-8", "HTML")
        .at(paths, get.clone(), "/");
    Op::new("getPageScript", "page", "The script of the page")
        .text("text/javascript; charset=utf-8", "The text.")
        .at(paths, get.clone(), "/page.js");
    Op::new("getPageStyle", "page", "The style of the page")
        .text("text/css; charset=utf-8", "The text.")
        .at(paths, get.clone(), "/page.css");
    Op::new("getMetrics", "monitoring", "Shows metrics for Prometheus")
        .text(
            "text/plain; version=0.0.4; charset=utf-8",
            "The text format of Prometheus.",
        )
        .refuses("404", "The node has no metrics.")
        .at(paths, get.clone(), "/metrics");
    let any = ObjectBuilder::new().schema_type(Type::Object).build();
    Op::new("getDescription", "monitoring", "This description")
        .content(
            "200",
            "OpenAPI 3.1",
            "application/json",
            RefOr::T(any.into()),
        )
        .at(paths, get, "/openapi.json");
}

fn openapi() -> Value {
    let mut paths = Paths::new();
    probes(&mut paths);
    elections(&mut paths);
    program(&mut paths);
    evacuations(&mut paths);
    partitions::partitions(&mut paths);
    locks(&mut paths);
    others(&mut paths);
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = ComponentsBuilder::new().schemas_from_iter(schemas());
    let components = components.security_scheme("token", token).build();
    let tags = [
        (
            "probes",
            "For load balancers and orchestrators, which need only the status.",
        ),
        (
            "elections",
            "The candidates of each election, and the end of a leader's term.",
        ),
        (
            "evacuations",
            "Orders to let candidates of other data centres lead.",
        ),
        ("partitions", "The owner of each partition."),
        ("locks", "For programs in other languages."),
        ("monitoring", "Metrics, and this description."),
        ("page", "A page for people."),
    ];
    let tags =
        tags.map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build());
    let info = InfoBuilder::new()
        .title("eldest")
        .version("1")
        .description(Some(ABOUT))
        .build();
    let all = OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components));
    let mut all = serde_json::to_value(all.tags(Some(tags)).build()).expect("JSON");
    finish(
        all["components"]["schemas"]
            .as_object_mut()
            .expect("schemas"),
    );
    all
}

/// Fails unless the file matches the types. Writes the file if that is requested.
fn compare(file: &str, now: &Value) {
    let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("ELDEST_RENEW").is_some() {
        let text = serde_json::to_string_pretty(now).expect("JSON") + "\n";
        std::fs::write(&path, text).expect("it can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let committed: Value = serde_json::from_str(&committed).unwrap_or_default();
    assert!(
        committed == *now,
        "{file} is not what the types say; if that is meant, run \
         `ELDEST_RENEW=1 cargo test -p eldest-http --lib openapi` and commit it"
    );
}

#[test]
fn the_committed_description_is_what_the_types_say() {
    compare("src/openapi.json", &openapi());
}

#[test]
fn the_committed_schema_of_the_command_is_what_the_types_say() {
    compare("src/command.schema.json", &command_schema());
}

#[test]
fn each_operation_has_its_own_id_and_an_explained_tag() {
    let all = openapi();
    let tags = all["tags"].as_array().expect("tags");
    let mut ids = std::collections::BTreeSet::new();
    for operations in all["paths"].as_object().expect("paths").values() {
        for operation in operations.as_object().expect("operations").values() {
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id), "{id} twice");
            let tag = &operation["tags"][0];
            assert!(
                tags.iter().any(|known| known["name"] == *tag),
                "{id}: {tag}"
            );
        }
    }
    assert!(ids.len() > 15, "{ids:?}");
}
