//! Tests the dashboard and the alert rules: they use existing metrics, and Prometheus accepts the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::caller::{exactly, get};
use crate::stage::{Result, Stage, answers};
use eldest_fixtures::tools::tool;

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns every metric of the table in docs/metrics.md with its labels. Tests of the library check that the table is
/// complete.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let table =
        std::fs::read_to_string(repository().join("docs/metrics.md")).expect("docs/metrics.md");
    let rows = table.lines().filter(|line| line.starts_with("| `eldest_"));
    rows.map(|line| {
        let cells: Vec<&str> = line.split('|').collect();
        let plain = |cell: &str| cell.trim().trim_matches('`').to_owned();
        (
            plain(cells[1]),
            cells[3].split_whitespace().map(plain).collect(),
        )
    })
    .collect()
}

/// Returns the name of the metric that a series belongs to.
fn metric(series: &str) -> &str {
    let parts = ["_bucket", "_count", "_sum"];
    let found = parts.iter().find_map(|part| series.strip_suffix(part));
    found.unwrap_or(series)
}

/// Returns all names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = words.filter(|word| word.starts_with("eldest_"));
    names.map(|name| metric(name).to_owned()).collect()
}

/// Checks that each matcher uses a label that the metric has.
fn check_matchers(text: &str) {
    let documented = documented();
    for (before, rest) in text.match_indices('{').map(|(at, _)| text.split_at(at)) {
        let start = before.rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let name = metric(&before[start.map_or(0, |at| at + 1)..]);
        let Some(labels) = documented.get(name) else {
            continue;
        };
        let inside = rest[1..].split('}').next().unwrap_or_default();
        for matcher in inside.split(',') {
            let label = matcher.split(['=', '!']).next().unwrap_or_default().trim();
            assert!(labels.contains(label), "{name} has no label {label:?}");
        }
    }
}

/// Returns the queries of the dashboard's panels.
fn expressions(dashboard: &Value) -> Result<Vec<&str>> {
    let panels = dashboard["panels"].as_array().ok_or("panels")?;
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let each = targets.flatten().map(|target| target["expr"].as_str());
    let each: Option<Vec<_>> = each.collect();
    Ok(each.ok_or("an expression")?)
}

#[test]
fn dashboard_and_rules_name_every_metric_and_no_other() -> Result {
    let measured: BTreeSet<String> = documented().into_keys().collect();
    let rules = std::fs::read_to_string(repository().join("deploy/monitoring/alerts.yml"))?;
    let dashboard = std::fs::read_to_string(repository().join("deploy/monitoring/dashboard.json"))?;
    let dashboard: Value = serde_json::from_str(&dashboard)?;
    let asked = expressions(&dashboard)?.join("\n");
    assert_eq!(named(&asked), measured, "the dashboard shows each metric");
    let unknown: Vec<_> = named(&rules).difference(&measured).cloned().collect();
    assert_eq!(unknown, [""; 0], "the rules name what is not measured");
    check_matchers(&asked);
    check_matchers(&rules);
    Ok(())
}

#[tokio::test]
async fn node_exports_metrics_under_these_names() -> Result {
    let stage = Stage::new().await?;
    let node = stage.node("2s", "a", &[]).await?;
    answers(node.at, "/leader", 200).await?;
    let wanted = [
        "eldest_leading",
        "eldest_rank",
        "eldest_renewals_total",
        "eldest_renewal_duration_seconds",
    ];
    let page =
        eldest_testing::eventually(crate::stage::SOON, "a renewal is measured", async || {
            let page = get(node.at, "/metrics").await.ok()?.body;
            wanted
                .iter()
                .all(|name| named(&page).contains(*name))
                .then_some(page)
        })
        .await?;
    let measured = documented();
    for line in page
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let (name, rest) = line.split_once('{').ok_or(line)?;
        let labels = measured
            .get(metric(name))
            .ok_or_else(|| format!("not documented: {line}"))?;
        let inside = rest.split('}').next().unwrap_or_default();
        let found: BTreeSet<String> = inside
            .split(',')
            .filter_map(|label| label.split('=').next())
            .filter(|label| *label != "le")
            .map(ToOwned::to_owned)
            .collect();
        assert_eq!(&found, labels, "{line}");
    }
    node.stop().await
}

/// Prometheus names a target this way if it is a DNS name.
#[tokio::test]
async fn prometheus_may_call_a_node_by_each_name_that_it_was_given() -> Result {
    let stage = Stage::new().await?;
    let names = ["--http-host", "node1.example", "--http-host", "node1"];
    let node = stage.node("60s", "a", &names).await?;
    for (host, status) in [
        ("node1.example:8470", 200),
        ("node1:8470", 200),
        ("node2.example:8470", 421),
    ] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(exactly(node.at, &request).await?.status, status, "{host}");
    }
    node.stop().await
}

/// Checks that promtool accepts that file of rules.
fn understood(promtool: &mut Command, rules: &Path) -> Result {
    let output = promtool.args(["check", "rules"]).arg(rules).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("SUCCESS"),
        "{said}"
    );
    Ok(())
}

#[test]
fn prometheus_understands_the_rules() -> Result {
    let Some(mut promtool) = tool("promtool", "prometheus") else {
        return Ok(());
    };
    understood(
        &mut promtool,
        &repository().join("deploy/monitoring/alerts.yml"),
    )
}

#[test]
fn prometheus_understands_the_queries_of_the_dashboard() -> Result {
    let Some(mut promtool) = tool("promtool", "prometheus") else {
        return Ok(());
    };
    let dashboard = std::fs::read_to_string(repository().join("deploy/monitoring/dashboard.json"))?;
    let dashboard: Value = serde_json::from_str(&dashboard)?;
    // The values that Grafana would fill in.
    let mut variables = vec![("$__rate_interval".to_owned(), "1m".to_owned())];
    for variable in dashboard["templating"]["list"]
        .as_array()
        .ok_or("variables")?
    {
        let name = variable["name"].as_str().ok_or("a name")?;
        variables.push((format!("${name}"), "billing|other".to_owned()));
    }
    let rules = expressions(&dashboard)?
        .into_iter()
        .enumerate()
        .map(|(number, asked)| {
            let filled = variables
                .iter()
                .fold(asked.to_owned(), |text, (name, value)| {
                    text.replace(name, value)
                });
            assert!(
                !filled.contains('$'),
                "a variable that there is not: {asked}"
            );
            json!({ "record": format!("panel:{number}"), "expr": filled })
        });
    let rules: Vec<Value> = rules.collect();
    let file = tempfile::NamedTempFile::new()?;
    // JSON is YAML.
    let groups = json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    std::fs::write(file.path(), groups.to_string())?;
    understood(&mut promtool, file.path())
}
