//! Describes the operations on partitions.

use utoipa::openapi::path::Parameter;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{HttpMethod, Paths, Required};

use super::{Op, holder, in_path, in_query, string};
use crate::contract;
use crate::contract::partitions::{
    ForgottenShare, KeyOwner, OwnPartitions, PartitionsList, PartitionsState,
};

const EVENTS: &str = "Events `state`, whose data is a `PartitionsState`: at once with all partitions, and after every change with \
    those whose owner changed. An event has at most 1024 of them, and `next_from` if others follow in the next event. After \
    5 s without an event follows an event `alive`.";

pub(super) fn partitions(paths: &mut Paths) {
    let get = HttpMethod::Get;
    let named = |id: &str, summary: &str| of_a_set(Op::new(id, "partitions", summary));
    Op::new(
        "listPartitions",
        "partitions",
        "Lists the sets of partitions that this node observes",
    )
    .answers::<PartitionsList>("200", "The sets of partitions.")
    .at(paths, get.clone(), "/v1/partitions");
    named(
        "getPartitions",
        "Shows members and owners, of 1024 partitions at most",
    )
    .takes(from())
    .answers::<PartitionsState>("200", "The partitions.")
    .at(paths, get.clone(), "/v1/partitions/{name}");
    let mut key = in_query("key", "The key, whose bytes may be escaped.", string());
    key.required = Required::True;
    named("findOwner", "Finds the owner of the partition of a key")
        .takes(key)
        .answers::<KeyOwner>("200", "The owner, as etcd last reported.")
        .refuses("409", "Others share the partitions under another count.")
        .refuses(
            "503",
            "The partition has no owner now, or etcd has not answered yet.",
        )
        .at(paths, get.clone(), "/v1/partitions/{name}/owner");
    own(paths);
    forget(paths);
    named(
        "followPartitions",
        "Streams changes of owners as server-sent events",
    )
    .text("text/event-stream", EVENTS)
    .refuses("503", "Too many callers follow events.")
    .at(paths, get, "/v1/partitions/{name}/events");
}

fn of_a_set(op: Op) -> Op {
    op.takes(in_path(
        "name",
        "The name of the set of partitions; slashes may be written as they are.",
    ))
    .refuses("404", "This node observes no such partitions.")
}

fn from() -> Parameter {
    let number = ObjectBuilder::new().schema_type(Type::Integer).build();
    in_query(
        "from",
        "The first partition to show; without it, 0.",
        number.into(),
    )
}

fn forget(paths: &mut Paths) {
    let summary = "Lets the other members take the partitions that are kept for an absent one";
    let mut identity = in_query("identity", "The name of the absent member.", string());
    identity.required = Required::True;
    let none = "This node observes no such partitions, or none are kept for an absent member of that name.";
    Op::changing("forgetShare", "partitions", summary)
        .takes(in_path(
            "name",
            "The name of the set of partitions; slashes may be written as they are.",
        ))
        .takes(identity)
        .answers::<ForgottenShare>("200", "They are kept no longer.")
        .refuses("404", none)
        .refuses(
            "409",
            "This node owns no such partitions on behalf of a program.",
        )
        .refuses("502", "etcd refused.")
        .refuses("503", "etcd did not answer; try again.")
        .at(paths, HttpMethod::Post, "/v1/partitions/{name}/forget");
}

fn own(paths: &mut Paths) {
    let summary =
        "Lists the partitions that this node owns on behalf of its callers, of 1024 at most";
    of_a_set(Op::new("listOwnPartitions", "partitions", summary))
        .takes(from())
        .takes(holder())
        .answers::<OwnPartitions>(
            "200",
            "The partitions, and how long a caller may act for them.",
        )
        .refuses(
            "409",
            "This node owns no such partitions on behalf of a program.",
        )
        .at(paths, HttpMethod::Get, "/v1/partitions/{name}/own");
    let summary = "Tells the node that the program on whose behalf it owns partitions works";
    of_a_set(Op::changing("beatPartitions", "partitions", summary))
        .answers::<contract::Heartbeat>("200", "The node has taken note.")
        .refuses(
            "409",
            "The node owns no such partitions on behalf of a program, or has no stall timeout.",
        )
        .at(paths, HttpMethod::Post, "/v1/partitions/{name}/heartbeat");
}
