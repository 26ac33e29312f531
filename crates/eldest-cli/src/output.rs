//! Writes results as text for people or JSON for programs, and detects that their reader has gone.

use std::fmt::Display;
use std::io::{self, Write};

use clap::ValueEnum;
use eldest::internal::steers;
use serde::Serialize;

/// The format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Text, for people
    #[default]
    Text,
    /// One JSON object per line, for programs
    Json,
}

/// Names the format where no option does.
pub(crate) const VARIABLE: &str = "ELDEST_OUTPUT";

impl Format {
    /// Returns the format on the command line, as far as it is known before the arguments are parsed.
    pub(crate) fn asked_for() -> Self {
        let args: Vec<String> = std::env::args_os()
            .map(|arg| arg.to_string_lossy().into_owned())
            .take_while(|arg| arg != "--")
            .collect();
        let pair = |args: &[String]| args[0] == "--output" && args[1] == "json";
        let given = args.iter().any(|arg| arg.starts_with("--output"));
        let json = args.windows(2).any(pair) || args.iter().any(|arg| arg == "--output=json");
        let variable = std::env::var_os(VARIABLE).is_some_and(|value| value == "json");
        if json || (!given && variable) {
            Format::Json
        } else {
            Format::Text
        }
    }
}

/// Writes text, or an object, as one line or as the text's own lines.
pub(crate) fn say(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Writes an object on a line of its own.
pub(crate) fn say_json(value: &impl Serialize) -> io::Result<()> {
    say(serde_json::to_string(value)?)
}

/// Waits until the reader of our output has gone: for commands that write seldom and would not notice it otherwise.
#[cfg(target_os = "linux")]
pub(crate) async fn reader_gone() {
    use rustix::event::{PollFd, PollFlags, poll};
    let (gone, closed) = tokio::sync::oneshot::channel();
    // A thread waits, because a file cannot be registered with the runtime. If the reader never goes, the thread ends
    // with the process.
    std::thread::spawn(move || {
        let stdout = io::stdout();
        // The poll requests no events, because errors are always reported.
        let mut output = [PollFd::new(&stdout, PollFlags::empty())];
        while poll(&mut output, None) == Err(rustix::io::Errno::INTR) {}
        let _ = gone.send(());
    });
    if closed.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Never completes on this platform: the next write fails instead.
#[cfg(not(target_os = "linux"))]
pub(crate) async fn reader_gone() {
    std::future::pending::<()>().await;
}

/// Writes a line to stderr. A failure is ignored, because it cannot be reported anywhere else.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Returns true if writing failed because the reader of our output has gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Escapes foreign text for a line of ours: nothing in it moves the cursor, ends the line, colours the terminal, or reorders the
/// text after it.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if steers(c) { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(
            one_line("a\x1b[31mb\nc\u{9b}d"),
            "a\u{fffd}[31mb\u{fffd}c\u{fffd}d"
        );
        assert_eq!(one_line("a\u{202e}b\u{2066}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(one_line("Füße 節点"), "Füße 節点");
    }
}
