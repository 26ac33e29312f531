//! Logs that requests go to another endpoint: the first switch at once, those of the next 10 s in one line at their
//! end.
//!
//! In an outage of all endpoints every request switches. Metrics count them all.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::runtime::SharedEnv;
use eldest_core::time::Time;

/// The shortest time between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// The endpoint that a lane left, and the one that it uses now.
pub(super) struct Switch {
    pub(super) lane: &'static str,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) why: String,
}

impl Switch {
    fn log(&self, switches: u64) {
        let Self {
            lane,
            from,
            to,
            why,
        } = self;
        tracing::warn!(target: "eldest::etcd", lane, from, to, switches, why, "endpoint switched");
    }
}

/// The switches of one lane.
#[derive(Default)]
pub(super) struct Switches {
    state: Mutex<State>,
    /// Cancelled when the switches are dropped, so that no task waits to sum up the switches of a closed session.
    dropped: CancellationToken,
}

impl Drop for Switches {
    fn drop(&mut self) {
        self.dropped.cancel();
    }
}

#[derive(Default)]
struct State {
    /// The time of the last line.
    logged: Option<Time>,
    /// The switches since that line: from the first endpoint to the last, and how many there were.
    unlogged: Option<(Switch, u64)>,
}

impl Switches {
    /// Logs a switch, at once or later in one line with others.
    pub(super) fn happened(self: &Arc<Self>, env: &SharedEnv, switch: Switch) {
        let now = env.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((unlogged, count)) = &mut state.unlogged {
            (unlogged.to, unlogged.why) = (switch.to, switch.why);
            *count += 1;
            return;
        }
        let next = state.logged.map(|logged| logged.after(EVERY));
        let Some(next) = next.filter(|next| now < *next) else {
            state.logged = Some(now);
            drop(state);
            return switch.log(1);
        };
        state.unlogged = Some((switch, 1));
        drop(state);
        let (this, end) = (Arc::downgrade(self), env.sleep(next.since(now)));
        let (env_then, dropped) = (Arc::clone(env), self.dropped.clone());
        let later = async move {
            tokio::select! {
                biased;
                () = end => {}
                () = dropped.cancelled() => return,
            }
            if let Some(this) = this.upgrade() {
                this.log_unlogged(env_then.now());
            }
        };
        env.spawn(later.in_current_span().boxed());
    }

    fn log_unlogged(&self, now: Time) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.logged = Some(now);
        let unlogged = state.unlogged.take();
        drop(state);
        if let Some((switch, count)) = unlogged {
            switch.log(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;

    use super::*;
    use crate::capture::Logs;
    use crate::runtime::{Clock, Scripted};

    /// Alternates between the endpoints.
    fn switch(number: u64) -> Switch {
        let [from, to] = if number.is_multiple_of(2) {
            ["one", "two"]
        } else {
            ["two", "one"]
        };
        Switch {
            lane: "lease",
            from: from.to_owned(),
            to: to.to_owned(),
            why: format!("failure {number}"),
        }
    }

    #[test]
    fn outage_of_all_endpoints_is_logged_at_once_and_each_10_s() {
        let (logs, _guard) = Logs::capture();
        let clock = Arc::<Clock>::default();
        let tasks: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
        let (spawned, alarm) = (Arc::clone(&tasks), Arc::clone(&clock));
        let sleep = move |duration| {
            let env = alarm.env(Scripted::still());
            env.wake_at(env.now().after(duration))
        };
        let env = clock.env(Scripted {
            sleep: Box::new(sleep),
            spawn: Box::new(move |task| spawned.lock().unwrap().push(task)),
            ..Scripted::still()
        });
        let switches = Arc::<Switches>::default();
        // Ten switches a second for 35 s, to and fro.
        for number in 0..=350_u64 {
            clock.set(number * 100);
            switches.happened(&env, switch(number));
            let mut tasks = tasks.lock().unwrap();
            tasks.retain_mut(|task| task.now_or_never().is_none());
        }
        let seen = logs.of("eldest::etcd", "endpoint switched", &[]);
        let said = |name: &str| seen.iter().map(|line| line.field(name)).collect::<Vec<_>>();
        assert_eq!(said("switches"), ["1", "100", "100", "100"]);
        assert_eq!(said("why")[..2], ["failure 0", "failure 100"]);
        assert_eq!(said("to")[..2], ["two", "two"], "where requests go now");
        // ... and the last ones, though none follows.
        clock.set(40_000);
        tasks
            .lock()
            .unwrap()
            .retain_mut(|task| task.now_or_never().is_none());
        let seen = logs.of("eldest::etcd", "endpoint switched", &[]);
        assert_eq!(seen.last().unwrap().field("switches"), "50");
        assert!(tasks.lock().unwrap().is_empty());
        // A task that waits to sum up more switches ends with the session.
        for number in [500, 501] {
            switches.happened(&env, switch(number));
        }
        drop(switches);
        let mut tasks = tasks.lock().unwrap();
        assert!(!tasks.is_empty(), "one waits");
        tasks.retain_mut(|task| task.now_or_never().is_none());
        assert!(tasks.is_empty(), "it waits no longer");
    }
}
