//! Receives the demo's events, records and shows each of them, and waits for the events that a step expects.

use std::time::Duration;

use anyhow::{Result, bail};
use eldest_testing::history::{Recorder, What};
use etcd_client::Client;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use crate::args::{ELECTION, Setup};
use crate::fleet::Fleet;
use crate::model::{Line, Model, News};
use crate::view::View;

/// How often a live view is drawn.
const FRAME: Duration = Duration::from_millis(80);

/// Everything that the script uses.
pub(crate) struct World {
    pub(crate) recorder: Recorder,
    pub(crate) client: Client,
    pub(crate) setup: Setup,
    /// How long etcd really keeps the keys of a node that vanished.
    pub(crate) ttl: Duration,
    pub(crate) fleet: Fleet,
    pub(crate) model: Model,
    pub(crate) view: View,
    news: UnboundedReceiver<News>,
    frames: Interval,
}

impl World {
    pub(crate) fn new(
        recorder: Recorder,
        client: Client,
        setup: Setup,
        ttl: Duration,
        (fleet, news): (Fleet, UnboundedReceiver<News>),
        view: View,
    ) -> Self {
        let mut frames = interval(FRAME);
        frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self {
            recorder,
            client,
            setup,
            ttl,
            fleet,
            model: Model::default(),
            view,
            news,
            frames,
        }
    }

    /// Returns the time since boot, as the nodes stamp it.
    pub(crate) fn now(&self) -> Duration {
        self.recorder.now()
    }

    /// Returns the position at which future events begin.
    pub(crate) fn mark(&self) -> usize {
        self.model.events.len()
    }

    /// Processes events until the model has the awaited state; `what` completes "not within 2 s: ...".
    pub(crate) async fn until<T>(
        &mut self,
        patience: Duration,
        what: &str,
        mut found: impl FnMut(&Model) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(found) = found(&self.model) {
                return Ok(found);
            }
            if let Some(why) = &self.model.blind {
                bail!("the candidates cannot be seen any more: {why}");
            }
            if !self.listen(deadline).await {
                bail!("not within {patience:?}: {what}");
            }
        }
    }

    /// Processes events for a while.
    pub(crate) async fn watch_for(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while self.listen(deadline).await {}
    }

    /// Processes one event, or draws; returns false if the deadline has passed.
    async fn listen(&mut self, deadline: Instant) -> bool {
        tokio::select! {
            biased;
            () = sleep_until(deadline) => return false,
            _ = self.frames.tick() => {
                let now = self.now();
                self.view.draw(&self.model, now);
            }
            news = self.news.recv() => match news {
                Some(news) => self.take(news),
                None => sleep_until(deadline).await,
            }
        }
        true
    }

    fn take(&mut self, news: News) {
        let now = self.now();
        if let News::Event(event) = &news
            && let Some(what) = event.to_history()
        {
            self.recorder
                .record_at(event.at, &event.node, ELECTION, what);
        }
        let newest = self
            .model
            .candidates
            .iter()
            .map(|candidate| candidate.create_revision);
        let newest = newest.max().unwrap_or_default();
        let line = self.model.apply(news, now);
        for candidate in &self.model.candidates {
            if candidate.create_revision > newest {
                let joined = What::Joined {
                    key: String::from_utf8_lossy(&candidate.key).into_owned(),
                    create_revision: candidate.create_revision,
                };
                self.recorder
                    .record_at(now, &candidate.name, ELECTION, joined);
            }
        }
        if let Some(line) = line {
            self.view.line(line);
        }
    }

    /// Prints what the demo itself does.
    pub(crate) fn say(&mut self, text: impl Into<String>) {
        let at = self.now();
        let (who, text) = (String::new(), text.into());
        self.view.line(Line { at, who, text });
    }

    /// Records what the demo does to a node.
    pub(crate) fn record(&self, node: &str, what: What) {
        self.recorder.record(node, ELECTION, what);
    }
}
