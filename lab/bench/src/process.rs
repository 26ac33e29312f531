//! Reads the memory and the processor time of a process from `/proc`.

use std::fs;

/// A process' memory and processor time; zero where the system does not report them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// The bytes of memory that are resident now.
    pub(crate) resident: f64,
    /// The part of `resident` that the process has written to. Pages of code, which are loaded when first needed, do not count.
    pub(crate) written: f64,
    /// The processor time until now, in seconds.
    pub(crate) processor: f64,
}

impl Usage {
    pub(crate) fn of(pid: Option<u32>) -> Option<Self> {
        let pid = pid?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let bytes = |name: &str| -> Option<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kilobytes * 1024.0)
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold blanks; it ends at the last parenthesis.
        let rest = stat.rsplit_once(')')?.1;
        let ticks: Vec<f64> = rest
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|ticks| ticks.parse().ok())
            .collect();
        Some(Self {
            resident: bytes("VmRSS:")?,
            written: bytes("RssAnon:")?,
            processor: ticks.iter().sum::<f64>() / rustix::param::clock_ticks_per_second() as f64,
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::Usage;

    #[test]
    fn a_process_has_memory_and_uses_its_processor() {
        let before = Usage::of(Some(std::process::id())).unwrap();
        assert!(before.written > 4096.0 && before.written < before.resident);
        let mut more = before.processor;
        while more <= before.processor {
            more = Usage::of(Some(std::process::id())).unwrap().processor;
        }
        assert!(Usage::of(Some(u32::MAX)).is_none());
    }
}
