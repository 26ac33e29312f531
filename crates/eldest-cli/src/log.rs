//! Writes log lines to stderr as text, whatever the format of the output.

use std::collections::BTreeSet;
use std::fmt;
use std::io::IsTerminal;

use anyhow::Result;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Span, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, debug_fn};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormattedFields, MakeWriter};
use tracing_subscriber::layer::{Filter, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::{Code, fault};

/// The name of the span around details of an event that is logged elsewhere.
const DETAIL: &str = "detail";
/// The name of the span of a library session. Its fields show which session a line belongs to.
const SESSION: &str = "session";
/// Separates two fields until they are written to a line.
const BETWEEN: &str = "\u{1f}";

/// Returns a span in which warnings and news are shown as details only, because the same is logged elsewhere.
pub(crate) fn detail() -> Span {
    tracing::info_span!("detail")
}

/// Starts to log the lines that the filter passes. Nothing is logged to a terminal on which the command draws.
pub(crate) fn start(filter: &str, draws: bool) -> Result<()> {
    let rules = parse(filter).map_err(|why| {
        fault(
            Code::Usage,
            format!("--log {filter:?}: {why}; write a level (error, warn, info, debug), or target=level,..."),
        )
    })?;
    let is_terminal = std::io::stderr().is_terminal();
    if !(draws && is_terminal) {
        subscriber(rules, is_terminal, std::io::stderr).init();
    }
    Ok(())
}

/// Returns the levels of the targets, which the text separates by commas; errors alone if it names none.
fn parse(text: &str) -> Result<Targets, String> {
    let rules = text.split(',').map(str::trim);
    let rules: Vec<&str> = rules.filter(|rule| !rule.is_empty()).collect();
    if rules.is_empty() {
        return Ok(Targets::new().with_default(LevelFilter::ERROR));
    }
    if let Some(rule) = rules.iter().find(|rule| rule.contains('[')) {
        return Err(format!(
            "{rule:?} selects spans or fields, and only targets can be selected"
        ));
    }
    let parsed = rules.join(",").parse::<Targets>();
    parsed.map_err(|error| error.to_string())
}

fn subscriber<W>(rules: Targets, ansi: bool, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = Lines {
        details: Filter::<Registry>::max_level_hint(&rules) >= Some(LevelFilter::DEBUG),
    };
    // Spans of these names are needed at every level, because they name the session of a line.
    let whose = |span: &Metadata<'_>| span.is_span() && [SESSION, DETAIL].contains(&span.name());
    let whose = filter_fn(whose).with_max_level_hint(LevelFilter::INFO);
    let fields = debug_fn(|writer: &mut Writer<'_>, field, value| match field.name() {
        "message" => write!(writer, "{value:?}"),
        name => write!(writer, "{name}={value:?}"),
    });
    let written = tracing_subscriber::fmt::layer()
        .fmt_fields(fields.delimited(BETWEEN))
        .event_format(lines)
        .with_writer(writer)
        .with_ansi(ansi)
        .with_filter(rules.or(whose));
    tracing_subscriber::registry().with(written)
}

/// Writes each field once: first those of the line, then the fields of its spans that the line lacks.
struct Lines {
    /// True if details are shown.
    details: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let spans = || context.event_scope().into_iter().flatten();
        let is_detail = || spans().any(|span| span.name() == DETAIL);
        if !self.details && level != Level::ERROR && is_detail() {
            return Ok(());
        }
        SystemTime.format_time(&mut writer)?;
        let (colour, plain) = match level {
            _ if !writer.has_ansi_escapes() => ("", ""),
            Level::ERROR => ("\u{1b}[31m", "\u{1b}[0m"),
            Level::WARN => ("\u{1b}[33m", "\u{1b}[0m"),
            Level::INFO => ("\u{1b}[32m", "\u{1b}[0m"),
            _ => ("\u{1b}[34m", "\u{1b}[0m"),
        };
        write!(writer, " {colour}{level:>5}{plain} {target}:")?;
        let mut own = String::new();
        context.format_fields(Writer::new(&mut own), event)?;
        let mut written = BTreeSet::new();
        let mut write = |fields: &str| {
            for field in fields.split(BETWEEN).filter(|field| !field.is_empty()) {
                let name = field.split_once('=').map_or("", |(name, _)| name);
                if name.is_empty() || written.insert(name.to_owned()) {
                    write!(writer, " {field}")?;
                }
            }
            Ok(())
        };
        write(&own)?;
        for span in spans() {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                write(fields)?;
            }
        }
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines, without their times.
    fn lines(rules: &str, log: impl FnOnce()) -> Vec<String> {
        let text = Text::default();
        let writer = text.clone();
        let rules = parse(rules).unwrap();
        let subscriber = subscriber(rules, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, log);
        let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| {
            let (_, line) = line.split_once(' ').unwrap();
            line.trim_start().to_owned()
        });
        lines.collect()
    }

    fn session() -> Span {
        tracing::info_span!(target: "eldest::session", "session", identity = "a", namespace = "eldest")
    }

    #[test]
    fn each_field_occurs_once_in_a_line_even_if_spans_are_not_logged() {
        for rules in ["warn", "debug"] {
            let logged = lines(rules, || {
                let _within = session().entered();
                tracing::warn!(target: "eldest::session", identity = "a", reason = "lease_lost", "lease lost");
                tracing::warn!(target: "eldest::etcd", why = "a=b c", "endpoint switched");
            });
            let expected = [
                r#"WARN eldest::session: lease lost identity="a" reason="lease_lost" namespace="eldest""#,
                r#"WARN eldest::etcd: endpoint switched why="a=b c" identity="a" namespace="eldest""#,
            ];
            assert_eq!(logged, expected, "{rules}");
        }
    }

    #[test]
    fn rules_select_levels_by_target_and_refuse_spans() {
        let log = || {
            tracing::warn!(target: "eldest::session", "lease lost");
            tracing::error!(target: "h2", "connection lost");
        };
        assert_eq!(lines("off, eldest=warn,", log).len(), 1);
        assert_eq!(lines("", log), ["ERROR h2: connection lost"]);
        let refused = parse("eldest[session]=debug").unwrap_err();
        assert!(refused.contains("eldest[session]=debug"), "{refused}");
        assert!(parse("eldest=loud").is_err());
    }

    #[test]
    fn details_are_shown_with_other_details_only_unless_they_are_errors() {
        let log = || {
            let session = detail().in_scope(session);
            let _within = session.entered();
            tracing::warn!("lease lost");
            tracing::error!("etcd is another cluster");
        };
        assert_eq!(lines("warn", log).len(), 1);
        assert_eq!(lines("info", log).len(), 1);
        assert_eq!(lines("debug", log).len(), 2);
        assert!(lines("error", log)[0].starts_with("ERROR "));
    }
}
