//! Runs a node whose work blocks the only thread of its runtime, until it is unblocked.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use eldest::{CancellationToken, Leadership, Session};
use eldest_testing::eventually;
use eldest_testing::history::What;

use crate::stage::{ELECTION, Led, Result, SOON, Stage, options};

const BLOCKED: &str = "runtime blocked";

/// The node "a".
pub(crate) struct Blocked<'a> {
    stage: &'a Stage,
    shutdown: CancellationToken,
    unblock: mpsc::Sender<()>,
    terms: Arc<Mutex<Vec<Arc<Led>>>>,
    thread: JoinHandle<Result>,
}

impl<'a> Blocked<'a> {
    /// Starts the node, which leads from now on with its runtime blocked. Returns its term as well.
    pub(crate) async fn start(stage: &'a Stage, endpoint: String) -> Result<(Self, Arc<Led>)> {
        stage.expect("a");
        let (unblock, blocked) = mpsc::channel::<()>();
        let (shutdown, terms) = (
            CancellationToken::new(),
            Arc::<Mutex<Vec<Arc<Led>>>>::default(),
        );
        let (sampler, options) = (Arc::clone(&stage.sampler), options("a", stage.ttl));
        let (stop, led) = (shutdown.clone(), Arc::clone(&terms));
        let thread = std::thread::spawn(move || -> Result {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build()?.block_on(async {
                let session = Session::connect([endpoint], options).await?;
                let work = |leadership: Leadership| {
                    let term = sampler.add("a", &leadership);
                    led.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(term);
                    // Once the sender is gone, returns at once.
                    let _ = blocked.recv();
                    async move {
                        leadership.lost().cancelled().await;
                        Ok::<_, eldest::BoxError>(())
                    }
                };
                session.election(ELECTION)?.run(stop, work).await?;
                Ok(session.close().await?)
            })
        });
        let node = Self {
            stage,
            shutdown,
            unblock,
            terms,
            thread,
        };
        let first = async || node.terms().first().cloned();
        let first = eventually(SOON, "a leads", first).await?;
        stage.fault("a", BLOCKED);
        Ok((node, first))
    }

    fn terms(&self) -> Vec<Arc<Led>> {
        let terms = self.terms.lock();
        terms.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Unblocks the runtime. The node waits behind `b`, which leads and then leaves; then it leads again, and shuts
    /// down.
    pub(crate) async fn unblock(self, b: crate::stage::Node) -> Result {
        drop(self.unblock);
        let stage = self.stage;
        stage.healed("a", BLOCKED);
        stage.queue(&["b", "a"], SOON).await?;
        b.stop().await?;
        let terms = self.terms;
        eventually(SOON, "a leads again", async || {
            let terms = terms.lock().unwrap_or_else(PoisonError::into_inner);
            (terms.len() == 2 && terms[1].term.is_valid()).then_some(())
        })
        .await?;
        stage.recorder.record("a", ELECTION, What::Left);
        self.shutdown.cancel();
        let thread = self.thread;
        eventually(SOON, "a shuts down", async || {
            thread.is_finished().then_some(())
        })
        .await?;
        thread.join().expect("no panic")
    }
}
