//! Captures all log lines, of every crate and level, for a test to check.
#![allow(dead_code)] // each test file uses its own part

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Write as _};
use std::sync::{Arc, Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// One event, or the attributes of a span.
#[derive(Clone)]
pub(crate) struct Line {
    /// The target, which is stable for our lines.
    pub(crate) target: String,
    /// The level.
    pub(crate) level: Level,
    /// The message of the event.
    pub(crate) message: String,
    /// All other fields.
    pub(crate) fields: BTreeMap<String, String>,
    /// The spans around the line, outermost first.
    pub(crate) within: Vec<&'static str>,
}

impl Line {
    /// Returns a field that must exist.
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> &str {
        let field = self.fields.get(name);
        field.unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    /// Returns true if these fields have these values.
    pub(crate) fn says(&self, fields: &[(&str, &str)]) -> bool {
        let has = |(name, value): &(&str, &str)| self.fields.get(*name).is_some_and(|v| v == value);
        fields.iter().all(has)
    }

    fn of(metadata: &tracing::Metadata<'_>, record: impl FnOnce(&mut Line)) -> Self {
        let mut line = Self {
            target: metadata.target().to_owned(),
            level: *metadata.level(),
            message: String::new(),
            fields: BTreeMap::new(),
            within: Vec::new(),
        };
        record(&mut line);
        line
    }
}

impl Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.level, self.target, self.message)?;
        let mut fields = self.fields.iter();
        fields.try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        if field.name() == "message" {
            self.message = value;
        } else {
            self.fields.insert(field.name().to_owned(), value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// The log of this thread since [`Logs::capture`]; each test runs on one thread.
#[derive(Clone, Default)]
pub(crate) struct Logs {
    lines: Arc<Mutex<Vec<Line>>>,
    /// The spans that have ended, in order of their ends.
    ended: Arc<Mutex<Vec<Line>>>,
}

impl Logs {
    /// Starts to capture, until the guard is dropped.
    pub(crate) fn capture() -> (Self, DefaultGuard) {
        // Without a subscriber, `tracing` may remember for all threads that a line has no listener.
        static LISTENING: Once = Once::new();
        LISTENING.call_once(|| {
            let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
        });
        let logs = Self::default();
        let subscriber = tracing_subscriber::registry().with(logs.clone());
        (logs, tracing::subscriber::set_default(subscriber))
    }

    /// Returns all lines so far.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.lock().clone()
    }

    /// Drops all lines so far.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    /// Returns the ended spans with that name, with all their fields.
    pub(crate) fn ended(&self, span: &str) -> Vec<Line> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let of_that_name = ended.iter().filter(|line| line.message == span);
        of_that_name.cloned().collect()
    }

    /// Returns our lines with this target and message that have these fields.
    pub(crate) fn of(&self, target: &str, message: &str, fields: &[(&str, &str)]) -> Vec<Line> {
        let lines = self.lock();
        let is_wanted = |l: &&Line| l.target == target && l.message == message && l.says(fields);
        lines.iter().filter(is_wanted).cloned().collect()
    }

    /// Returns the one line that [`Logs::of`] finds.
    #[track_caller]
    pub(crate) fn one(&self, target: &str, message: &str, fields: &[(&str, &str)]) -> Line {
        let mut found = self.of(target, message, fields);
        assert_eq!(
            found.len(),
            1,
            "one {message:?} of {target} with {fields:?} in\n{self:?}"
        );
        found.remove(0)
    }

    /// Returns every kind of line that we logged, as (target, level, message, names of its fields).
    pub(crate) fn kinds(&self) -> BTreeSet<(String, String, String, Vec<String>)> {
        let ours = |line: &Line| line.target.starts_with("eldest::");
        let lines = self.lines().into_iter().filter(ours);
        let kind = |line: Line| {
            let fields = line.fields.into_keys().collect();
            (line.target, line.level.to_string(), line.message, fields)
        };
        lines.map(kind).collect()
    }

    /// Returns true if any log line contains this text.
    pub(crate) fn contain(&self, text: &str) -> bool {
        self.lines()
            .iter()
            .any(|line| format!("{line:?}").contains(text))
    }

    fn push(&self, line: Line) {
        self.lock().push(line);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Debug for Logs {
    /// Writes our lines only; the others are for searching.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for line in self.lines() {
            if line.target.starts_with("eldest::") {
                writeln!(text, "{line:?}")?;
            }
        }
        f.write_str(&text)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Logs {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        self.push(Line::of(event.metadata(), |line| {
            event.record(line);
            let scope = context.event_scope(event).into_iter();
            line.within = scope
                .flat_map(tracing_subscriber::registry::Scope::from_root)
                .map(|s| s.name())
                .collect();
        }));
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let line = Line::of(attributes.metadata(), |line| {
            let metadata = attributes.metadata();
            metadata.name().clone_into(&mut line.message);
            let fields = metadata.fields().iter();
            // Fields that are recorded later count, too.
            line.fields = fields
                .map(|f| (f.name().to_owned(), String::new()))
                .collect();
            attributes.record(line);
            let scope = context.span_scope(id).into_iter();
            let scope = scope.flat_map(tracing_subscriber::registry::Scope::from_root);
            line.within = scope.map(|s| s.name()).collect();
            line.within.pop();
        });
        self.push(line.clone());
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(line);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(line) = span.extensions_mut().get_mut::<Line>()
        {
            values.record(line);
        }
        // For searches in all recorded text.
        if let Some(span) = context.span(id) {
            self.push(Line::of(span.metadata(), |line| {
                "recorded".clone_into(&mut line.target);
                values.record(line);
            }));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let line = context
            .span(&id)
            .and_then(|span| span.extensions_mut().remove::<Line>());
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.extend(line);
    }
}
