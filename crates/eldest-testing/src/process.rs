//! Starts, pauses and stops a child process, and (on Unix) keeps it from outliving this process.
#![allow(clippy::disallowed_methods)] // waits for the kernel, in real time

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

/// A child process that ends with this value, and (on Unix) with this process however that ends.
#[derive(Debug)]
pub struct Process {
    child: Child,
    #[cfg(unix)]
    _guard: Option<guard::Guard>,
}

impl Process {
    /// Runs `command`. If this process is killed, the child is killed too, and `folder` is removed.
    ///
    /// # Errors
    ///
    /// There is no such program, or it cannot be run.
    pub fn spawn(command: &mut Command, folder: &Path) -> io::Result<Self> {
        #[cfg(unix)]
        {
            // A group of its own keeps Ctrl-C in a terminal away from the servers.
            std::os::unix::process::CommandExt::process_group(command, 0);
            let child = command.spawn()?;
            let guard = guard::Guard::new(child.id(), folder)
                .inspect_err(|error| tracing::warn!(%error, "the server may outlive this process"))
                .ok();
            Ok(Self {
                child,
                _guard: guard,
            })
        }
        #[cfg(not(unix))]
        {
            let _ = folder;
            Ok(Self {
                child: command.spawn()?,
            })
        }
    }

    /// Returns the child's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the child's exit status, if it has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Stops the child (SIGSTOP); on return, it no longer runs.
    #[cfg(unix)]
    pub fn pause(&self) {
        use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
        if let Some(pid) = self.signal(Signal::STOP) {
            let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED;
            let options = options | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            // The loop is bounded in case another process traces the child, and is notified instead of us.
            for _ in 0..1_000 {
                if !matches!(waitid(WaitId::Pid(pid), options), Ok(None)) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    /// Continues the child (SIGCONT).
    #[cfg(unix)]
    pub fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Asks the child to end (SIGTERM).
    #[cfg(unix)]
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) -> Option<rustix::process::Pid> {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).ok()?)?;
        // Fails only when the child has ended; its number is not reused before we waited for it.
        let _ = rustix::process::kill_process(pid, signal);
        Some(pid)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // SIGKILL, which also ends a stopped process
        let _ = self.child.wait();
    }
}

/// Keeps a child from outliving a parent that is killed.
///
/// The kernel's parent death signal is no help: it fires when the *thread* that started the child ends, and it can
/// only be set between fork and exec (`unsafe`) or by a program that not every Linux has. So a second child, a
/// shell, waits at a pipe that closes when we end, however we end. It is a child of ours and not a wrapper around
/// the server, so that the server's process id, exit status and signals stay plain.
#[cfg(unix)]
mod guard {
    use std::io::{self, Write};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    /// A line on the input means that all is well; the end of the input means that the parent is gone.
    const SCRIPT: &str = r#"read -r line || { kill -9 "$1"; sleep 0.1; rm -rf -- "$2"; }"#;

    #[derive(Debug)]
    pub(super) struct Guard(Child);

    impl Guard {
        pub(super) fn new(pid: u32, folder: &Path) -> io::Result<Self> {
            let mut command = Command::new("/bin/sh");
            command
                .args(["-c", SCRIPT, "guard", &pid.to_string()])
                .arg(folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            command.spawn().map(Self)
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            // Kill the guard before the pipe closes: it must not kill a process id that may belong to another process
            // by now.
            let pipe = self.0.stdin.take();
            if pipe.is_none_or(|mut pipe| pipe.write_all(b"done\n").is_err()) {
                let _ = self.0.kill();
            }
            let _ = self.0.wait();
        }
    }
}
