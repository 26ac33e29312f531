//! Collects findings, and formats them as text for people or JSON for programs.

use std::fmt::Write as _;

use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::output::one_line;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Should be changed.
    Warn,
    /// Must be changed.
    Fail,
}

impl Level {
    const fn told(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warn => "WARN",
            Level::Fail => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    /// A member's endpoint, or what the finding is about as a whole.
    about: String,
    /// What was looked at; stable, for programs.
    check: &'static str,
    level: Level,
    message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// All of them, in the order in which they were found.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn ok(&mut self, about: &str, check: &'static str, message: impl Into<String>) {
        self.push(about, check, Level::Ok, message.into(), None);
    }

    pub(crate) fn note(&mut self, about: &str, check: &'static str, message: impl Into<String>) {
        self.push(about, check, Level::Note, message.into(), None);
    }

    /// A warning, or worse, with its remedy.
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
        message: String,
        remedy: Option<String>,
    ) {
        let about = about.to_owned();
        self.0.push(Finding {
            about,
            check,
            level,
            message,
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

    /// For people: one block for each thing that findings are about.
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
                finding.level.told(),
                one_line(&finding.message)
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

impl Serialize for Findings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Findings", 2)?;
        object.serialize_field("worst", &self.worst())?;
        object.serialize_field("findings", &self.0)?;
        object.end()
    }
}
