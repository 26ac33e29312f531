//! Implements the keeper, a process of one thread between supervisor and program. The keeper ends the program, and
//! every process that the program started, when the deadline in memory passes or the supervisor dies.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use eldest_process::cgroup::MadeCgroup;
use eldest_process::clock::{self, Alarm, NEVER, pause};
use eldest_process::pidfd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getppid, kill_process_group, set_child_subreaper, setsid};

use super::after::{After, KILLED, LEASE_EXPIRING, PROGRAM_ENDED};
use super::board::Board;
use super::spec::{Exit, Limits, described};
use super::wire::{Order, Report};
use super::{children, shim};

/// How often the keeper waits for orphans of the program that have ended.
const ROUND: Duration = Duration::from_secs(1);
/// How long the last sweep waits for a process to end before it checks again.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The keeper's arguments, in this order, before the program.
pub(super) struct Place {
    pub(super) supervisor: i32,
    /// Numbers of open files in the supervisor.
    pub(super) board: i32,
    pub(super) orders: i32,
    pub(super) reports: i32,
    pub(super) cgroup: bool,
    pub(super) after: Option<After>,
}

impl Place {
    pub(super) fn arguments(&self) -> [String; 7] {
        let after = self.after.as_ref();
        [
            self.supervisor.to_string(),
            self.board.to_string(),
            self.orders.to_string(),
            self.reports.to_string(),
            i32::from(self.cgroup).to_string(),
            after
                .map_or(0, |after| clock::nanos(after.limit))
                .to_string(),
            after.map(|after| after.command.clone()).unwrap_or_default(),
        ]
    }

    fn parse(arguments: &[OsString]) -> Option<(Self, &[OsString])> {
        let (place, program) = arguments.split_at_checked(7)?;
        let number = |at: usize| place[at].to_str()?.parse::<i32>().ok();
        let limit = place[5].to_str()?.parse().ok()?;
        let command = place[6].to_str()?.to_owned();
        let place = Self {
            supervisor: number(0)?,
            board: number(1)?,
            orders: number(2)?,
            reports: number(3)?,
            cgroup: number(4)? != 0,
            after: (limit > 0).then(|| After {
                command,
                limit: Duration::from_nanos(limit),
            }),
        };
        Some((place, program))
    }

    /// Opens the file that the supervisor has open under that number.
    fn open(&self, number: i32, options: &OpenOptions) -> io::Result<File> {
        options.open(format!("/proc/{}/fd/{number}", self.supervisor))
    }
}

/// Runs the keeper from its start to its exit.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let Some((place, program)) = Place::parse(arguments) else {
        return ExitCode::from(2);
    };
    match Keeper::begin(&place, program).map(Keeper::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "eldest: the keeper failed: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Keeper {
    board: Board,
    orders: File,
    /// The bytes of a line that is not complete yet.
    heard: Vec<u8>,
    reports: File,
    supervisor: OwnedFd,
    alarm: Alarm,
    cgroup: Option<MadeCgroup>,
    limits: Limits,
    /// True once the supervisor has died or has closed its pipe to us.
    alone: bool,
    /// True if the supervisor died while nothing else ended the program.
    orphaned: bool,
    program: Program,
    /// The token and the key of the term, once the program of a leader has begun.
    leader: Option<(i64, String)>,
    after: Option<After>,
    /// The reason that the supervisor named for the program's end.
    why: Option<String>,
}

/// The program, or the shim that will become the program.
struct Program {
    /// The id of the process, and of its process group.
    pid: Pid,
    end: OwnedFd,
    /// A pipe from the keeper to the shim. End of file tells the shim that the keeper has died.
    gate: File,
    /// Kept open, because the shim may not have opened it yet.
    _other_end: OwnedFd,
    began: bool,
    asked: bool,
}

impl Keeper {
    fn begin(place: &Place, program: &[OsString]) -> io::Result<Self> {
        let supervisor = Pid::from_raw(place.supervisor).ok_or(io::ErrorKind::InvalidInput)?;
        let end = pidfd::open(place.supervisor)?;
        let mut read = OpenOptions::new();
        let mut write = OpenOptions::new();
        read.read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        write.write(true);
        let board = Board::from_file(place.open(place.board, &read)?);
        let orders = place.open(place.orders, &read)?;
        let mut reports = place.open(place.reports, &write)?;
        // If the supervisor were dead, these would be the files of another process with its id.
        if getppid() != Some(supervisor) {
            return Err(io::Error::other("the supervisor has gone"));
        }
        setsid()?;
        set_child_subreaper(Some(rustix::process::getpid()))?;
        let limits = board.read().unwrap_or(Limits::none(0));
        let cgroup = place.cgroup.then(MadeCgroup::create).flatten();
        let program = Program::prepare(program, cgroup.as_ref(), Vec::new())?;
        let waiting = Report::Ready(program.pid.as_raw_nonzero().get());
        reports.write_all(waiting.to_string().as_bytes())?;
        Ok(Self {
            board,
            orders,
            heard: Vec::new(),
            reports,
            supervisor: end,
            alarm: Alarm::new()?,
            cgroup,
            limits,
            alone: false,
            orphaned: false,
            program,
            leader: None,
            after: place.after.clone(),
            why: None,
        })
    }

    /// Runs until the program has ended or will never be started.
    fn run(mut self) {
        loop {
            self.hear();
            self.read_limits();
            let now = clock::now();
            let program = &mut self.program;
            if program.began {
                if now >= self.limits.kill_at || children::ended(program.pid).is_some() {
                    return self.finish();
                }
                if now >= self.limits.term_at && !program.asked {
                    program.asked = true;
                    // This fails if the group is empty; the next round then sees that the program has ended.
                    let _ = kill_process_group(program.pid, Signal::TERM);
                    let _ = kill_process_group(program.pid, Signal::CONT);
                }
                let program = program.pid;
                children::reap_ended(|child| child == program);
            } else if self.alone {
                return self.finish();
            }
            // If waiting fails, short pauses replace it, so that the deadline still holds: the program must not be left
            // alone.
            if self.wait(now).is_err() {
                pause(PAUSE);
            }
        }
    }

    /// Reads the orders that have arrived, and carries them out.
    fn hear(&mut self) {
        let mut bytes = [0; 512];
        while !self.alone {
            match self.orders.read(&mut bytes) {
                Ok(0) => self.leave_alone(),
                Ok(count) => self.heard.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            match line.parse() {
                Ok(Order::Go(leader)) => self.go(leader),
                Ok(Order::Signal(signal)) => {
                    let signal = Signal::from_named_raw(signal);
                    if let Some(signal) = signal.filter(|_| self.program.began) {
                        let _ = kill_process_group(self.program.pid, signal);
                    }
                }
                Ok(Order::Why(reason)) => self.why = self.why.take().or(Some(reason)),
                // The memory is read next in any case. Unknown words do not come from our own supervisor.
                Ok(Order::Look) | Err(_) => {}
            }
        }
    }

    /// Reads the deadline. After the supervisor's death the program gets one grace period, or less if the deadline is
    /// earlier.
    fn read_limits(&mut self) {
        if let Some(limits) = self.board.read()
            && !self.alone
        {
            self.limits = limits;
        }
        if !self.alone && pidfd::has_ended(&self.supervisor) {
            self.leave_alone();
        }
    }

    fn leave_alone(&mut self) {
        if let Some(limits) = self.board.read() {
            self.limits = limits;
        }
        self.alone = true;
        let now = clock::now();
        let limits = &mut self.limits;
        self.orphaned = self.program.began && !self.program.asked && now < limits.term_at;
        limits.term_at = limits.term_at.min(now);
        limits.kill_at = limits.kill_at.min(now.saturating_add(limits.grace));
    }

    /// Lets the program start; works only once.
    fn go(&mut self, leader: Option<(i64, String)>) {
        // The supervisor may have died, or the deadline passed, while the order was on its way.
        self.read_limits();
        let program = &mut self.program;
        if self.alone || program.began {
            return;
        }
        if clock::now() >= self.limits.term_at {
            return self.send_report(Report::TooLate);
        }
        let started = match children::ended(program.pid) {
            None => program.start(leader.clone()),
            Some(_) => Err(rustix::io::Errno::SRCH.into()),
        };
        self.leader = leader.filter(|_| program.began);
        let report = match started {
            Ok(()) => Report::Started,
            Err(error) => Report::Failed(error.raw_os_error().unwrap_or_default()),
        };
        self.send_report(report);
    }

    fn wait(&self, now: u64) -> io::Result<()> {
        let limits = self.limits;
        let program = &self.program;
        let term_at = if program.asked { NEVER } else { limits.term_at };
        let next = if program.began {
            let round = now.saturating_add(clock::nanos(ROUND));
            round.min(term_at).min(limits.kill_at)
        } else {
            NEVER
        };
        self.alarm.set(next)?;
        let mut fds = vec![PollFd::new(&self.alarm, PollFlags::IN)];
        if !self.alone {
            fds.push(PollFd::new(&self.orders, PollFlags::IN));
            fds.push(PollFd::new(&self.supervisor, PollFlags::IN));
        }
        if program.began {
            fds.push(PollFd::new(&program.end, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills until no process is left, and reports how the program itself ended, if it began.
    fn finish(mut self) {
        self.hear();
        let program = &self.program;
        let asked = program.asked || children::ended(program.pid).is_none();
        let exit = sweep(program.pid, self.cgroup.as_ref(), children::list);
        if program.began {
            self.follow_up(exit, asked);
            self.send_report(Report::Gone(exit, asked));
        }
        self.cgroup.take().into_iter().for_each(MadeCgroup::remove);
    }

    /// Runs the command that follows the program of a leader, to its end or its limit. No process of the program is left.
    fn follow_up(&mut self, exit: Exit, asked: bool) {
        let (Some(after), Some(leader)) = (self.after.take(), self.leader.take()) else {
            return;
        };
        self.send_report(Report::Following(exit, asked));
        let why = match &self.why {
            _ if !asked => PROGRAM_ENDED,
            Some(why) => why,
            None if self.orphaned => KILLED,
            None => LEASE_EXPIRING,
        };
        let now = clock::now();
        let environment = after.environment(why, now, self.limits.until);
        let by = now.saturating_add(clock::nanos(after.limit));
        let ran = Program::prepare(&after.program(), self.cgroup.as_ref(), environment).and_then(
            |mut command| {
                let started = command.start(Some(leader));
                let in_time = started.is_ok() && command.ends_by(by, &self.alarm);
                let exit = sweep(command.pid, self.cgroup.as_ref(), children::list);
                started.map(|()| in_time.then_some(exit))
            },
        );
        let ended = ran.unwrap_or_else(|error| {
            let _ = writeln!(io::stderr(), "eldest: the command of --after: {error}");
            Some(Exit::Code(shim::NOT_RUNNABLE.into()))
        });
        if self.alone && ended != Some(Exit::Code(0)) {
            let how = described(ended);
            let _ = writeln!(io::stderr(), "eldest: the command of --after failed: {how}");
        }
        self.send_report(Report::Followed(ended));
    }

    fn send_report(&mut self, report: Report) {
        // The supervisor may have died.
        let _ = self.reports.write_all(report.to_string().as_bytes());
    }
}

impl Program {
    fn prepare(
        program: &[OsString],
        cgroup: Option<&MadeCgroup>,
        environment: Vec<(&str, OsString)>,
    ) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let child = Command::new("/proc/self/exe")
            .arg0("eldest")
            .args(shim::arguments(read.as_raw_fd(), cgroup))
            .args(program)
            .envs(environment)
            .process_group(0)
            .spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            pid,
            end: pidfd::open(pid.as_raw_nonzero().get())?,
            gate: File::from(write),
            _other_end: read,
            began: false,
            asked: false,
        })
    }

    /// Lets the shim become the program.
    fn start(&mut self, leader: Option<(i64, String)>) -> io::Result<()> {
        let order = Order::Go(leader).to_string();
        self.gate.write_all(order.as_bytes())?;
        self.began = true;
        Ok(())
    }

    /// Waits for the end of the program; returns false if it has not ended at that time.
    fn ends_by(&self, by: u64, alarm: &Alarm) -> bool {
        loop {
            if children::ended(self.pid).is_some() {
                return true;
            }
            if clock::now() >= by {
                return false;
            }
            let mut fds = [
                PollFd::new(alarm, PollFlags::IN),
                PollFd::new(&self.end, PollFlags::IN),
            ];
            if alarm.set(by).is_err() || poll(&mut fds, None).is_err() {
                pause(PAUSE);
            }
        }
    }
}

/// Kills the program and all processes that it started. Until the end, no other process gets the program's process id
/// or group id.
///
/// `list` returns all children. If it fails, only the program's group can be killed, so the sweep retries: a process
/// that is left alive here would run beside the next leader.
fn sweep(
    program: Pid,
    cgroup: Option<&MadeCgroup>,
    list: impl Fn() -> io::Result<Vec<Pid>>,
) -> Exit {
    let mut wait = PAUSE;
    loop {
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        // One signal reaches the whole group at once, however fast its processes fork.
        let _ = kill_process_group(program, Signal::KILL);
        let Ok(all) = list() else {
            pause(wait);
            wait = (wait * 2).min(LONGEST_PAUSE);
            continue;
        };
        let left = children::kill(all, |child| child == program);
        if left.is_empty()
            && let Some(exit) = children::ended(program)
            && list().is_ok_and(|all| all == [program])
        {
            children::reap(program);
            return exit;
        }
        if !left.is_empty() {
            children::await_any(&left, wait);
        } else if children::ended(program).is_none() {
            children::await_any(&[program], wait);
        }
        // A process that survives the first SIGKILL may take its time.
        wait = (wait * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A process that would run for long, in a group of its own.
    #[allow(clippy::zombie_processes)] // the sweep under test waits for it
    fn lasting() -> Pid {
        let mut command = Command::new("sleep");
        let child = command.arg("600").process_group(0).spawn().unwrap();
        Pid::from_raw(child.id().cast_signed()).unwrap()
    }

    fn exists(pid: Pid) -> bool {
        std::fs::exists(format!("/proc/{}", pid.as_raw_nonzero())).unwrap()
    }

    #[test]
    fn a_sweep_goes_on_until_the_list_of_children_can_be_read() {
        let (program, stray) = (lasting(), lasting());
        let failures = Cell::new(5);
        let list = || {
            if failures.get() > 0 {
                failures.set(failures.get() - 1);
                return Err(io::Error::other("no /proc"));
            }
            // Only these two children are listed, because other tests have children as well.
            Ok([program, stray]
                .into_iter()
                .filter(|pid| exists(*pid))
                .collect())
        };
        assert_eq!(sweep(program, None, list), Exit::Signal(9));
        assert_eq!(failures.get(), 0, "it was asked again");
        assert!(!exists(program) && !exists(stray), "nobody is left");
    }
}
