//! Waits for a request to stop: Ctrl-C, or a signal of a service manager.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, and what service managers send.
pub(crate) struct Stop {
    #[cfg(unix)]
    signals: [Signal; 3],
    times: u32,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signals: [
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
            ],
            times: 0,
        })
    }

    /// Waits until it is.
    #[cfg(unix)]
    pub(crate) async fn asked(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        self.times += 1;
    }

    /// Waits until it is.
    #[cfg(not(unix))]
    pub(crate) async fn asked(&mut self) {
        // Without a handler there is nothing to wait for; the system ends us.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.times += 1;
    }

    /// Whether it was asked more than once.
    pub(crate) fn in_a_hurry(&self) -> bool {
        self.times > 1
    }
}
