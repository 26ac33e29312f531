//! Collects findings, and formats them as text for people or JSON for programs.

use std::fmt::Write as _;

use eldest_http::contract::command::{Examination, Finding, Level};

use crate::output::one_line;

const fn level_name(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Note => "note",
        Level::Warn => "WARN",
        Level::Fail => "FAIL",
    }
}

/// All findings, in the order in which they were found.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn ok(&mut self, about: &str, check: &'static str, message: impl Into<String>) {
        self.push(about, check, Level::Ok, message.into(), None);
    }

    pub(crate) fn note(&mut self, about: &str, check: &'static str, message: impl Into<String>) {
        self.push(about, check, Level::Note, message.into(), None);
    }

    /// Adds a warning or an error, with its remedy.
    pub(crate) fn bad(
        &mut self,
        level: Level,
        (about, check): (&str, &'static str),
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(about, check, level, message.into(), Some(remedy.into()));
    }

    fn push(
        &mut self,
        about: &str,
        check: &'static str,
        level: Level,
        detail: String,
        remedy: Option<String>,
    ) {
        let about = about.to_owned();
        self.0.push(Finding {
            about,
            check: check.to_owned(),
            level,
            detail,
            remedy,
        });
    }

    pub(crate) fn extend(&mut self, other: &Findings) {
        self.0.extend(other.0.iter().cloned());
    }

    pub(crate) fn worst(&self) -> Level {
        let levels = self.0.iter().map(|finding| finding.level);
        levels.max().unwrap_or(Level::Ok)
    }

    fn count(&self, level: Level) -> usize {
        self.0
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    }

    /// Returns the findings for programs.
    pub(crate) fn examination(self) -> Examination {
        Examination {
            worst: self.worst(),
            findings: self.0,
        }
    }

    /// Returns the findings for people: one block for each subject.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut about = None;
        for finding in &self.0 {
            if about != Some(&finding.about) {
                about = Some(&finding.about);
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{}", one_line(&finding.about));
            }
            let _ = writeln!(
                text,
                "  {:4}  {}",
                level_name(finding.level),
                one_line(&finding.detail)
            );
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(text, "        -> {}", one_line(remedy));
            }
        }
        let must = self.count(Level::Fail);
        let should = self.count(Level::Warn);
        let _ = match (must, should) {
            (0, 0) => write!(text, "healthy"),
            _ => write!(text, "{must} must be changed, {should} should be"),
        };
        text
    }
}
