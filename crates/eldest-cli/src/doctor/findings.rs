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

    /// Returns the findings for people: one block for each subject, in the order in which the subjects were first found.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut subjects: Vec<&str> = Vec::new();
        for finding in &self.0 {
            if !subjects.contains(&&*finding.about) {
                subjects.push(&finding.about);
            }
        }
        for about in subjects {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", one_line(about));
            for finding in self.0.iter().filter(|finding| finding.about == about) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subject_has_one_heading() {
        let mut findings = Findings::default();
        findings.ok("challenges", "answer_within", "enough");
        findings.ok("clock", "clock_rate", "even");
        let about = ("challenges", "challenges_port");
        findings.bad(Level::Warn, about, "no port", "open it");
        let text = "challenges\n  ok    enough\n  WARN  no port\n        -> open it\nclock\n  ok    even\n\
            0 must be changed, 1 should be";
        assert_eq!(findings.text(), text);
    }
}
