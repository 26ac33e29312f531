//! Runs a failed test once more, alone, and keeps the output of a test that then passes.
//!
//! Only tests that use real time, processes, sockets or containers are repeated, because other load of the machine can
//! make them fail. A test that reported a broken promise is never repeated.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::case::Case;
use crate::failures::Failure;
use crate::setup;

/// A failed test that runs once more.
#[derive(Debug)]
pub(crate) struct Retry {
    pub(crate) failure: Failure,
    pub(crate) case: Case,
}

impl Retry {
    /// Returns true if the test passes now; the outputs of both runs are then kept in the folder `flaky`.
    pub(crate) fn passes(&mut self, stage: &str) -> Result<bool> {
        let mut output = Vec::new();
        if self.case.run(&mut output)?.is_some() {
            return Ok(false);
        }
        let path = self.kept_at(stage);
        let lines = [
            &[self.case.alone.clone(), String::new(), "First:".to_owned()],
            &self.failure.output[..],
            &["Again, alone:".to_owned()],
            &output,
        ];
        let folder = path.parent().context("a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        fs::write(&path, lines.concat().join("\n"))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(true)
    }

    fn kept_at(&self, stage: &str) -> PathBuf {
        let name = self.case.shown().replace("::", ".").replace(' ', "-");
        setup::target()
            .join("flaky")
            .join(format!("{stage}-{name}.txt"))
    }
}
