//! Runs the program in a terminal, and reads the screen.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use eldest_testing::{Etcd, eventually};
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::common::{Result, SOON, at};

/// A program in a terminal of its own.
pub(crate) struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    pub(crate) child: Child,
    /// Draws the program's output on the screen, until every process has closed the terminal.
    reader: JoinHandle<()>,
}

impl Terminal {
    pub(crate) fn start(mut command: Command, rows: u16, columns: u16) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        // The terminal must not become our controlling terminal, though the tests may lead a session.
        let not_ours = OFlags::NOCTTY.bits().cast_signed();
        let mut slave = OpenOptions::new();
        slave.read(true).write(true).custom_flags(not_ours);
        let slave = slave.open(path)?;
        let mut keyboard = File::from(master);
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&keyboard, size)?;
        command
            .stdin(slave.try_clone()?)
            .stdout(slave.try_clone()?)
            .stderr(slave)
            .env("TERM", "xterm-256color");
        let child = command.spawn()?;
        // The command holds the other end of the terminal, which must not outlive the program.
        drop(command);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(
            rows.try_into()?,
            columns.try_into()?,
            0,
        )));
        let (shown, mut output) = (Arc::clone(&screen), keyboard.try_clone()?);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails once every process has closed the terminal.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                shown.process(&bytes[..count]);
            }
        });
        keyboard.flush()?;
        Ok(Self {
            keyboard,
            screen,
            child,
            reader,
        })
    }

    /// Returns the text that the terminal shows now.
    pub(crate) fn screen(&self) -> String {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.screen().contents()
    }

    /// Returns true if the terminal shows the ordinary screen, not that of a full-screen program.
    pub(crate) fn is_ordinary(&self) -> bool {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        !screen.screen().alternate_screen() && !screen.screen().hide_cursor()
    }

    /// Waits until the screen satisfies the condition.
    pub(crate) async fn shows(&self, what: &str, is: impl Fn(&str) -> bool) -> Result<String> {
        let shown = eventually(SOON, what, async || Some(self.screen()).filter(|s| is(s))).await;
        shown.map_err(|error| format!("{error}; the screen shows\n{}", self.screen()).into())
    }

    pub(crate) fn type_in(&mut self, text: &str) -> Result {
        self.keyboard.write_all(text.as_bytes())?;
        Ok(())
    }

    /// Waits for the program's end, and returns its exit code when all its output is on the screen.
    pub(crate) async fn end(&mut self) -> Result<i32> {
        let ended = async || self.child.try_wait().ok().flatten();
        let status = eventually(SOON, "it ends", ended).await;
        let status = status.map_err(|error| format!("{error}; it shows\n{}", self.screen()))?;
        let is_shown = async || self.reader.is_finished().then_some(());
        eventually(SOON, "all that it wrote is shown", is_shown).await?;
        Ok(status.code().ok_or("ended by a signal")?)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command, types the answer to its question, and returns its output and its exit code.
pub(crate) async fn typed(etcd: &Etcd, args: &[&str], answer: &str) -> Result<(String, i32)> {
    let mut terminal = Terminal::start(at(etcd, args), 24, 120)?;
    terminal
        .shows("its question", |screen| screen.contains("[y/N]"))
        .await?;
    terminal.type_in(answer)?;
    let code = terminal.end().await?;
    Ok((terminal.screen(), code))
}
