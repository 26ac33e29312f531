//! Waits for a request to stop: Ctrl-C, or a signal of a service manager.

use std::io;

#[cfg(unix)]
use rustix::process::Signal;
#[cfg(unix)]
use tokio::signal::unix;

#[cfg(unix)]
use crate::signals;

/// Ctrl-C, and the signals that service managers send.
pub(crate) struct Stop {
    #[cfg(unix)]
    signals: [Option<unix::Signal>; 3],
    times: u32,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signals: [
                signals::listen(Signal::INT)?,
                signals::listen(Signal::TERM)?,
                signals::listen(Signal::HUP)?,
            ],
            times: 0,
        })
    }

    /// Waits until a stop is requested.
    #[cfg(unix)]
    pub(crate) async fn asked(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            () = signals::came(interrupt) => {}
            () = signals::came(terminate) => {}
            () = signals::came(hangup) => {}
        }
        self.times += 1;
    }

    /// Waits until a stop is requested.
    #[cfg(not(unix))]
    pub(crate) async fn asked(&mut self) {
        // Without a handler there is nothing to wait for; the system ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.times += 1;
    }

    /// Returns true if the stop was requested more than once.
    pub(crate) fn in_a_hurry(&self) -> bool {
        self.times > 1
    }
}
