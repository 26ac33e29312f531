//! Implements `eldest top`: keeps the live view up to date, and restores the terminal at the end.

mod screen;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use anyhow::Result;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, terminal};
use eldest::Session;
use eldest_http::contract::Evacuation;
use eldest_http::contract::command::Queue;
use tokio::sync::mpsc;

use self::screen::Screen;
use crate::connection::duration;
use crate::evacuate;
use crate::exit::{Code, fault};
use crate::global::Global;
use crate::output::Format;
use crate::stop::Stop;
use crate::{version, view};

/// How often the screen is drawn even if nothing has changed.
const FRAME: Duration = Duration::from_millis(250);

/// Show all elections below a prefix on the whole terminal, live
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show all elections below a prefix on the whole terminal, live.\n\n\
    The upper part has one line for each election, the lower part the candidates of the selected one. Arrows, j and k, \
    Page Up and Down, Home and End select an election; r asks etcd at once; q, Esc or Ctrl-C quit. Recent changes are bold. \
    A data centre that is evacuated is shown below the title.",
    after_help = "Examples:
  # Show everything in the namespace
  eldest top
  # Show the elections below billing, and ask etcd every five seconds
  eldest top billing --interval 5s"
)]
pub(crate) struct Args {
    /// The name of an election; names that begin with it and a slash are shown too [default: all]
    #[arg(
        value_name = "ELECTION|PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    below: String,

    /// How often to ask etcd
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "1s")]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < Duration::from_millis(100) {
        return Err("at least 100ms: each time, all keys below the prefix are read".to_owned());
    }
    Ok(interval)
}

/// The result of one read of etcd.
struct Seen {
    revision: i64,
    queues: Vec<Queue>,
    /// The evacuated data centres, as far as this user may read them.
    evacuations: Vec<Evacuation>,
}

type Look = Result<Seen, eldest::Error>;

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    if global.output == Format::Json {
        return Err(fault(
            Code::Usage,
            "top is for people; `status` and `watch` write JSON",
        ));
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(fault(
            Code::Usage,
            "top needs a terminal; `status` and `watch` do not",
        ));
    }
    let session = global.connection.observer().await?;
    let first = read_overview(&session, &args.below).await?;
    let place = global.connection.place(&args.below).unwrap_or_default();
    let mut screen = Screen::new(place);
    screen.show(first, Instant::now());

    let mut stop = Stop::new()?;
    let (pressed, mut keys) = mpsc::channel(16);
    let _restored = Restored::take()?;
    // Reading the terminal blocks, so it has a thread of its own, which ends with the program.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if pressed.blocking_send(event).is_err() {
                break;
            }
        }
    });
    let mut next = Box::pin(later(&session, &args, args.interval));
    loop {
        screen::print(&screen.lines(terminal::size()?, Instant::now()))?;
        tokio::select! {
            looked = &mut next => {
                screen.update(looked, Instant::now());
                next = Box::pin(later(&session, &args, args.interval));
            }
            event = keys.recv() => match event.map(|event| asked(&event)) {
                Some(Asked::Nothing) => {}
                Some(Asked::Move(by)) => screen.select(by),
                Some(Asked::Look) => next = Box::pin(later(&session, &args, Duration::ZERO)),
                // Without a keyboard nobody could end the view.
                Some(Asked::End) | None => return Ok(Code::Done),
            },
            () = stop.asked() => return Ok(Code::Done),
            () = tokio::time::sleep(FRAME) => {}
        }
    }
}

async fn later(session: &Session, args: &Args, pause: Duration) -> Look {
    tokio::time::sleep(pause).await;
    read_overview(session, &args.below).await
}

async fn read_overview(session: &Session, below: &str) -> Look {
    let overview = session.overview(below).await?;
    let queues = overview.queues();
    let all = queues.iter().flat_map(|queue| queue.roster().members());
    let leases = view::leases(session, all).await;
    let shown = queues.iter().map(|queue| view::queue(queue, &leases));
    let mut shown: Vec<Queue> = shown.collect();
    version::fill(session, &mut shown, queues).await;
    Ok(Seen {
        revision: overview.revision(),
        queues: shown,
        evacuations: evacuate::standing_if_permitted(session)
            .await?
            .unwrap_or_default(),
    })
}

/// The action of a key press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// Move by so many lines: down, or up if negative.
    Move(isize),
    Look,
    End,
}

fn asked(event: &Event) -> Asked {
    const PAGE: isize = 10;
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind,
        ..
    }) = event
    else {
        return Asked::Nothing;
    };
    if *kind == KeyEventKind::Release {
        return Asked::Nothing;
    }
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Asked::End,
        KeyCode::Char('q') | KeyCode::Esc => Asked::End,
        KeyCode::Char('r') => Asked::Look,
        KeyCode::Down | KeyCode::Char('j') => Asked::Move(1),
        KeyCode::Up | KeyCode::Char('k') => Asked::Move(-1),
        KeyCode::PageDown => Asked::Move(PAGE),
        KeyCode::PageUp => Asked::Move(-PAGE),
        KeyCode::Home => Asked::Move(isize::MIN),
        KeyCode::End => Asked::Move(isize::MAX),
        _ => Asked::Nothing,
    }
}

/// The terminal, taken for the view. Dropping the value gives it back, and so does a panic, before its message.
struct Restored;

impl Restored {
    fn take() -> io::Result<Self> {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            report(panic);
        }));
        terminal::enable_raw_mode()?;
        let restored = Self;
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(restored)
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}
