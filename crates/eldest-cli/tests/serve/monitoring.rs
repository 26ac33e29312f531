//! Tests the dashboard and the alert rules: they use existing metrics, and Prometheus accepts the rules.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use eldest_fixtures::metrics::documented;
use eldest_fixtures::tools::tool;
use serde_json::{Value, json};

use crate::shared::Result;

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
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
        let Some((_, labels)) = documented.get(name) else {
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
