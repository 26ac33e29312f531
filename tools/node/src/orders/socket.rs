//! Receives orders on a Unix socket, one line and one answer per connection, and carries them out.
//!
//! `clock` asks for the seconds of the wall clock. `starve` keeps every worker of the runtime busy until `wake`. `deaf` makes the work ignore the end of its term from
//! now on. `panic` makes the work panic, `step-down` makes the node hand over, and `announce N` makes the work
//! announce N bytes. The work itself answers the last four.

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use eldest::{Announcement, Election, Leadership};
use tokio::runtime::Handle;

use crate::config::Config;

/// How long the work may take to start an order: while etcd is out of reach, the work may be in the middle of a
/// request.
const PATIENCE: Duration = Duration::from_secs(3);

/// The orders to this node, if it accepts any.
pub(crate) struct Orders(Option<Arc<Desk>>);

#[derive(Default)]
struct Desk {
    deaf: AtomicBool,
    for_work: Mutex<Option<(Order, SyncSender<String>)>>,
    starving: Mutex<bool>,
    fed: Condvar,
}

/// An order that only the work of a leader can carry out.
enum Order {
    Deaf,
    Panic,
    StepDown,
    Announce(usize),
}

impl Orders {
    pub(crate) fn open(config: &Config) -> Result<Self> {
        let Some(path) = &config.orders else {
            return Ok(Self(None));
        };
        // A killed node may have left the file.
        let _ = std::fs::remove_file(path);
        let listener =
            UnixListener::bind(path).with_context(|| format!("ORDERS={}", path.display()))?;
        let desk = Arc::new(Desk::default());
        let (runtime, given) = (Handle::current(), Arc::clone(&desk));
        let thread = std::thread::Builder::new().name("orders".to_owned());
        thread.spawn(move || {
            for caller in listener.incoming().flatten() {
                // The caller may have gone by now.
                let _ = given.serve(&caller, &runtime);
            }
        })?;
        Ok(Self(Some(desk)))
    }

    /// Returns true if the work must continue as if its term had not ended.
    pub(crate) fn is_deaf(&self) -> bool {
        let desk = self.0.as_ref();
        desk.is_some_and(|desk| desk.deaf.load(Ordering::Relaxed))
    }

    /// Carries out the order that the work received, if there is one.
    pub(crate) async fn obey(&self, leadership: &Leadership, election: &Election) {
        let Some(desk) = &self.0 else {
            return;
        };
        let order = lock(&desk.for_work).take();
        let Some((order, answer)) = order else {
            return;
        };
        let reply = match order {
            Order::Deaf => {
                desk.deaf.store(true, Ordering::Relaxed);
                "done".to_owned()
            }
            Order::Panic => {
                let _ = answer.send("done".to_owned());
                panic!("the work was ordered to panic");
            }
            Order::StepDown => {
                // The work goes on until the successor is warm.
                let election = election.clone();
                tokio::spawn(async move { election.step_down().await });
                "done".to_owned()
            }
            Order::Announce(bytes) => {
                let news = Announcement::new("padded").with_metadata("padding", "x".repeat(bytes));
                match leadership.proclaim(news).await {
                    Ok(()) => "taken".to_owned(),
                    Err(error) => format!("refused: {error}"),
                }
            }
        };
        let _ = answer.send(reply);
    }
}

impl Desk {
    fn serve(self: &Arc<Self>, caller: &UnixStream, runtime: &Handle) -> Result<()> {
        let mut line = String::new();
        BufReader::new(caller).read_line(&mut line)?;
        let answer = self.carry_out(line.trim(), runtime);
        let answer = answer.unwrap_or_else(|error| format!("error: {error}"));
        writeln!(&mut &*caller, "{answer}")?;
        Ok(())
    }

    fn carry_out(self: &Arc<Self>, order: &str, runtime: &Handle) -> Result<String> {
        match order.split_once(' ').unwrap_or((order, "")) {
            ("clock", "") => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
                return Ok(now.as_secs().to_string());
            }
            ("starve", "") => self.starve(runtime),
            ("wake", "") => {
                *lock(&self.starving) = false;
                self.fed.notify_all();
            }
            ("deaf", "") => return Ok(self.order_work(Order::Deaf)),
            ("panic", "") => return Ok(self.order_work(Order::Panic)),
            ("step-down", "") => return Ok(self.order_work(Order::StepDown)),
            ("announce", bytes) => return Ok(self.order_work(Order::Announce(bytes.parse()?))),
            _ => bail!("`{order}` is no order"),
        }
        Ok("done".to_owned())
    }

    /// Keeps every worker busy; on return all are.
    fn starve(self: &Arc<Self>, runtime: &Handle) {
        *lock(&self.starving) = true;
        let workers = runtime.metrics().num_workers();
        let all = Arc::new(Barrier::new(workers + 1));
        for _ in 0..workers {
            let (desk, all) = (Arc::clone(self), Arc::clone(&all));
            runtime.spawn(async move {
                all.wait();
                let starving = lock(&desk.starving);
                let fed = desk.fed.wait_while(starving, |starving| *starving);
                drop(fed);
            });
        }
        all.wait();
    }

    fn order_work(&self, order: Order) -> String {
        let (answer, answered) = sync_channel(1);
        *lock(&self.for_work) = Some((order, answer));
        if let Ok(answer) = answered.recv_timeout(PATIENCE) {
            return answer;
        }
        // The order is withdrawn, unless the work has just begun with it.
        match lock(&self.for_work).take() {
            Some(_) => "nobody works here".to_owned(),
            None => answered.recv().unwrap_or_else(|_| "unknown".to_owned()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
