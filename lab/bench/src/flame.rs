//! Samples the library's processes and draws the samples as a flame graph. Each box is a function, as wide as its share
//! of the processor time, including the functions that it calls. The drawing code is here because `deny.toml` does not
//! allow the licence of the usual crate.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use pprof::{Frames, ProfilerGuard, ProfilerGuardBuilder};

use crate::peer::SAMPLES;

/// The sampling frequency for each second of processor time; no multiple of regular events.
const FREQUENCY: i32 = 997;
/// The libraries in which a sample cannot be taken.
const BLOCKED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// A process that samples itself.
pub(crate) struct Sampling {
    guard: ProfilerGuard<'static>,
    into: PathBuf,
}

impl Sampling {
    /// Starts sampling; `None` if it is not wanted.
    pub(crate) fn start() -> Result<Option<Self>> {
        let Some(into) = std::env::var_os(SAMPLES) else {
            return Ok(None);
        };
        let builder = ProfilerGuardBuilder::default()
            .frequency(FREQUENCY)
            .blocklist(&BLOCKED);
        Ok(Some(Self {
            guard: builder.build()?,
            into: into.into(),
        }))
    }

    /// Appends the samples: a line for each stack, its outermost function first, and its count.
    pub(crate) fn finish(self) -> Result<()> {
        let report = self.guard.report().build()?;
        let mut lines = String::new();
        for (stack, times) in &report.data {
            writeln!(lines, "{} {times}", functions(stack).join(";"))?;
        }
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.into)?;
        Ok(file.write_all(lines.as_bytes())?)
    }
}

fn functions(stack: &Frames) -> Vec<String> {
    let outermost_first = stack.frames.iter().rev();
    outermost_first
        .flat_map(|inlined| inlined.iter().rev())
        .map(|symbol| symbol.name().replace(';', ","))
        .collect()
}

/// The files of samples and of the picture.
pub(crate) struct Picture {
    samples: PathBuf,
    svg: PathBuf,
    title: String,
}

impl Picture {
    /// Removes the files of an earlier run.
    pub(crate) fn of(bench: &str, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let samples = folder.join(format!("{bench}.samples"));
        if samples.exists() {
            fs::remove_file(&samples)?;
        }
        Ok(Self {
            samples,
            svg: folder.join(format!("{bench}.flame.svg")),
            title: format!("{bench}: processor time of the library's processes"),
        })
    }

    pub(crate) fn samples(&self) -> &Path {
        &self.samples
    }

    /// Draws the samples of the processes, and returns the picture's file.
    pub(crate) fn draw(&self) -> Result<&Path> {
        let text = fs::read_to_string(&self.samples).context("no process of the library ended")?;
        fs::write(&self.svg, draw(&text, &self.title)?)?;
        Ok(&self.svg)
    }
}

/// A function within its chain of callers.
#[derive(Default)]
struct Node {
    times: u64,
    calls: BTreeMap<String, Node>,
}

impl Node {
    fn add<'a>(&mut self, mut stack: impl Iterator<Item = &'a str>, times: u64) {
        self.times += times;
        if let Some(function) = stack.next() {
            let callee = self.calls.entry(function.to_owned()).or_default();
            callee.add(stack, times);
        }
    }

    fn depth(&self, least: u64) -> usize {
        let calls = self.calls.values().filter(|node| node.times >= least);
        1 + calls.map(|node| node.depth(least)).max().unwrap_or(0)
    }
}

const WIDTH: f64 = 1200.0;
const ROW: f64 = 14.0;
/// Width of a letter.
const LETTER: f64 = 6.0;
/// The smallest share of a frame that is drawn.
const LEAST: f64 = 0.005;

fn draw(samples: &str, title: &str) -> Result<String> {
    let mut all = Node::default();
    for line in samples.lines() {
        let (stack, times) = line.rsplit_once(' ').context("a line without a number")?;
        all.add(stack.split(';'), times.parse()?);
    }
    ensure!(all.times > 0, "nothing was sampled");
    let least = (all.times as f64 * LEAST).ceil() as u64;
    let rows = all.depth(least);
    let height = (rows + 1) as f64 * ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" \
         font-size=\"10\">\n<text x=\"4\" y=\"10\">{}, {} samples</text>\n",
        escaped(title),
        all.times
    );
    let mut boxes = Boxes {
        all: all.times,
        least,
        svg: &mut svg,
    };
    boxes.node("all", &all, 0.0, 1)?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

struct Boxes<'a> {
    all: u64,
    least: u64,
    svg: &'a mut String,
}

impl Boxes<'_> {
    fn node(&mut self, name: &str, node: &Node, left: f64, row: usize) -> Result<()> {
        let share = node.times as f64 / self.all as f64;
        let (width, top) = (share * WIDTH, row as f64 * ROW);
        // Warm colours; a function always has the same one.
        let hash = name
            .bytes()
            .fold(0_u32, |hash, byte| hash.wrapping_mul(31) + u32::from(byte));
        let green = 110 + hash % 120;
        write!(
            self.svg,
            "<g><title>{} {:.1}%</title><rect x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{:.0}\" \
             fill=\"rgb(235,{green},90)\"/>",
            escaped(name),
            share * 100.0,
            ROW - 1.0,
        )?;
        let room = (width / LETTER) as usize;
        if room > 3 {
            let short: String = name.chars().take(room - 1).collect();
            let (x, y) = (left + 2.0, top + 10.0);
            write!(
                self.svg,
                "<text x=\"{x:.1}\" y=\"{y}\">{}</text>",
                escaped(&short)
            )?;
        }
        self.svg.push_str("</g>\n");
        let mut left = left;
        for (name, callee) in &node.calls {
            if callee.times >= self.least {
                self.node(name, callee, left, row + 1)?;
            }
            left += callee.times as f64 / self.all as f64 * WIDTH;
        }
        Ok(())
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::draw;

    #[test]
    fn a_box_is_as_wide_as_its_share_of_the_samples() {
        let svg = draw("main;a<T>;b 300\nmain;c 699\nmain;rare 1\n", "of & for").unwrap();
        let wide = |name: &str| {
            let at = svg.find(&format!("<title>{name} "))?;
            let (_, width) = svg[at..].split_once("width=\"")?;
            width.split_once('"')?.0.parse::<f64>().ok()
        };
        let widths = ["main", "a&lt;T&gt;", "b", "c", "rare"].map(wide);
        assert_eq!(
            widths,
            [Some(1200.0), Some(360.0), Some(360.0), Some(838.8), None]
        );
        assert!(svg.contains("of &amp; for, 1000 samples"));
        assert!(draw("", "nothing").is_err());
    }
}
