//! Draws the pictures of `docs/performance.md` from saved runs, and has the tables of the pages and the report of all figures
//! written with them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use plotters::prelude::*;

use crate::kept::{self, Kept, Line, PEERS};
use crate::tables;

/// Pixels of one panel.
const PANEL: (u32, u32) = (560, 380);
/// The benches that are shown for each kind of etcd.
const OF_MEMBERS: [(&str, usize, &str); 3] = [
    ("handover", 10, "hand-over, 10 candidates"),
    ("join", 1, "join"),
    ("locks/free", 1, "free lock"),
];

struct Picture {
    name: &'static str,
    panels: Vec<Panel>,
}

/// A panel. Its horizontal axis has a place for each item; its vertical one is logarithmic.
struct Panel {
    title: String,
    along: &'static str,
    places: Vec<String>,
    curves: Vec<Curve>,
}

struct Curve {
    name: String,
    colour: RGBColor,
    /// True for a target, false for a measurement.
    target: bool,
    points: Vec<(f64, f64)>,
}

/// The report of all figures.
const REPORT: &str = "target/bench/performance.md";

/// Draws the runs of a folder into the folder, and writes the tables.
pub(crate) fn run(folder: &Path) -> Result<()> {
    for (name, text) in draw(folder)? {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("{}", path.display());
    }
    let report = Path::new(REPORT);
    fs::create_dir_all(report.parent().context(REPORT)?)?;
    let report = (report.to_owned(), tables::report(folder)?);
    for (path, text) in tables::pages(folder)?.into_iter().chain([report]) {
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Returns the pictures of the folder's runs, by the names of their files.
fn draw(folder: &Path) -> Result<Vec<(String, String)>> {
    let runs = kept::read(folder)?;
    let lines = &runs.first().context("nothing is kept there")?.lines;
    let pictures = [candidates(lines), elections(lines), members(&runs)];
    let mut drawn = Vec::new();
    for picture in pictures {
        let full = |panel: &Panel| panel.curves.iter().any(|curve| !curve.points.is_empty());
        if picture.panels.iter().all(full) {
            drawn.push((format!("{}.svg", picture.name), svg(&picture)?));
        }
    }
    ensure!(!drawn.is_empty(), "what is kept there has nothing to draw");
    Ok(drawn)
}

fn candidates(lines: &[Line]) -> Picture {
    let handover: Vec<&Line> = lines
        .iter()
        .filter(|line| line.bench == "handover")
        .collect();
    Picture {
        name: "candidates",
        panels: vec![
            costs("Hand-over, median in ms", "candidates", &handover, |line| {
                line.p50
            }),
            ratios(
                "Hand-over of eldest beside the limit and Go",
                "candidates",
                &handover,
                (Some(1.3), 0.6),
            ),
        ],
    }
}

fn elections(lines: &[Line]) -> Picture {
    let lead: Vec<&Line> = lines
        .iter()
        .filter(|line| line.bench == "many/lead")
        .collect();
    let each = |line: &Line| line.p50 * 1000.0 / line.n as f64;
    Picture {
        name: "elections",
        panels: vec![
            costs(
                "Joining and leading many elections, median in µs for each",
                "elections",
                &lead,
                each,
            ),
            ratios(
                "... by eldest beside the limit and Go",
                "elections",
                &lead,
                (None, 0.2),
            ),
        ],
    }
}

/// Draws the figures of each kind of etcd.
fn members(runs: &[Kept]) -> Picture {
    let places: Vec<String> = runs.iter().map(Kept::kind).collect();
    let found = |bench: (&str, usize), peer: &str, figure: fn(&Line) -> Option<f64>| {
        let of = |run: &Kept| {
            let line = |line: &&Line| (line.bench.as_str(), line.n) == bench && line.peer == peer;
            run.lines.iter().find(line).and_then(figure)
        };
        let points = runs.iter().enumerate();
        let points = points.filter_map(|(at, run)| Some((at as f64, of(run)?)));
        points.collect::<Vec<_>>()
    };
    let (bench, n, what) = OF_MEMBERS[0];
    let of_peers = PEERS.iter().map(|peer| Curve {
        name: (*peer).to_owned(),
        colour: colour(peer),
        target: false,
        points: found((bench, n), peer, |line| Some(line.p50)),
    });
    let to_limit = OF_MEMBERS
        .iter()
        .zip(PEERS)
        .map(|((bench, n, what), peer)| Curve {
            name: (*what).to_owned(),
            colour: colour(peer),
            target: false,
            points: found((bench, *n), "eldest", |line| line.ratio_to_limit),
        });
    let along = "where etcd has its data, and its members";
    Picture {
        name: "members",
        panels: vec![
            Panel {
                title: format!("{what}, median in ms"),
                along,
                places: places.clone(),
                curves: of_peers.collect(),
            },
            Panel {
                title: "eldest beside the limit".to_owned(),
                along,
                curves: to_limit
                    .chain([target("target, 1.3", RED, 1.3, runs.len())])
                    .collect(),
                places,
            },
        ],
    }
}

/// Draws a panel with a curve for each peer.
fn costs(title: &str, along: &'static str, lines: &[&Line], cost: impl Fn(&Line) -> f64) -> Panel {
    let places = sizes(lines);
    let curves = PEERS.iter().map(|peer| Curve {
        name: (*peer).to_owned(),
        colour: colour(peer),
        target: false,
        points: points(&places, lines, peer, |line| Some(cost(line))),
    });
    Panel {
        title: title.to_owned(),
        along,
        curves: curves.collect(),
        places: places.iter().map(usize::to_string).collect(),
    }
}

/// Draws a panel with the library's ratios to the limit and to Go, and their targets.
fn ratios(title: &str, along: &'static str, lines: &[&Line], most: (Option<f64>, f64)) -> Panel {
    let places = sizes(lines);
    let of_own = |name: &str, peer, ratio: fn(&Line) -> Option<f64>| Curve {
        name: name.to_owned(),
        colour: colour(peer),
        target: false,
        points: points(&places, lines, "eldest", ratio),
    };
    let end = places.len();
    let to_limit = most
        .0
        .map(|most| target(&format!("target, {most}"), colour("limit"), most, end));
    let to_go = target(&format!("target, {}", most.1), colour("go"), most.1, end);
    let measured = [
        of_own("eldest / limit", "limit", |line| line.ratio_to_limit),
        of_own("eldest / Go", "go", |line| line.ratio_to_go),
    ];
    Panel {
        title: title.to_owned(),
        along,
        curves: measured
            .into_iter()
            .chain(to_limit)
            .chain([to_go])
            .collect(),
        places: places.iter().map(usize::to_string).collect(),
    }
}

fn target(name: &str, colour: RGBColor, at: f64, places: usize) -> Curve {
    Curve {
        name: name.to_owned(),
        colour,
        target: true,
        points: vec![(0.0, at), (places.saturating_sub(1) as f64, at)],
    }
}

fn sizes(lines: &[&Line]) -> Vec<usize> {
    let mut sizes: Vec<usize> = lines.iter().map(|line| line.n).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn points(
    sizes: &[usize],
    lines: &[&Line],
    peer: &str,
    figure: impl Fn(&Line) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let own = lines.iter().filter(|line| line.peer == peer);
    let mut points: Vec<(f64, f64)> = own
        .filter_map(|line| {
            let at = sizes.iter().position(|size| *size == line.n)?;
            Some((at as f64, figure(line)?))
        })
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn colour(peer: &str) -> RGBColor {
    match peer {
        "limit" => RGBColor(110, 110, 110),
        "eldest" => RGBColor(20, 120, 60),
        "go" => RGBColor(0, 110, 190),
        "rpc" => RGBColor(200, 120, 0),
        "etcdctl" => RGBColor(130, 70, 170),
        _ => RGBColor(180, 40, 60),
    }
}

fn svg(picture: &Picture) -> Result<String> {
    let mut text = String::new();
    let count = u32::try_from(picture.panels.len())?;
    let root = SVGBackend::with_string(&mut text, (PANEL.0 * count, PANEL.1)).into_drawing_area();
    let draw = || {
        root.fill(&WHITE)?;
        let areas = root.split_evenly((1, picture.panels.len()));
        for (panel, area) in picture.panels.iter().zip(areas) {
            panel.draw(&area)?;
        }
        root.present()
    };
    draw().map_err(|error| anyhow!("drawing {}: {error}", picture.name))?;
    drop(root);
    Ok(text)
}

type Failed<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

impl Panel {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
    ) -> Result<(), Failed<B>> {
        const ROOM: f64 = 1.25;
        // The legend is to the right of the last place.
        const LEGEND: f64 = 1.6;
        let all = || self.curves.iter().flat_map(|curve| &curve.points);
        let least = all().map(|point| point.1).fold(f64::INFINITY, f64::min) / ROOM;
        let most = all().map(|point| point.1).fold(0.0, f64::max) * ROOM;
        let end = self.places.len() as f64 - 1.0;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d(-0.2..end * LEGEND + 0.2, (least..most).log_scale())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_desc(self.along)
            .x_labels(3 * self.places.len())
            .x_label_formatter(&|at| {
                let whole = (at - at.round()).abs() < 1e-6;
                let place = whole
                    .then(|| self.places.get(at.round() as usize))
                    .flatten();
                place.cloned().unwrap_or_default()
            })
            .y_label_formatter(&|value| format!("{}", (value * 1000.0).round() / 1000.0))
            .draw()?;
        for curve in self.curves.iter().filter(|curve| !curve.points.is_empty()) {
            let style = curve.colour.stroke_width(if curve.target { 1 } else { 2 });
            let points = curve.points.iter().copied();
            let drawn = if curve.target {
                chart.draw_series(DashedLineSeries::new(points, 5, 4, style))?
            } else {
                let dots = points
                    .clone()
                    .map(|at| Circle::new(at, 3, curve.colour.filled()));
                chart.draw_series(dots)?;
                chart.draw_series(LineSeries::new(points, style))?
            };
            drawn
                .label(&curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(200, 200, 200))
            .draw()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::draw;
    use std::fs;
    use std::path::Path;

    /// If this fails, `cargo xtask bench plot` draws them again.
    #[test]
    fn pictures_match_the_figures_beside_them() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance");
        let drawn = draw(&folder).unwrap();
        for (name, text) in &drawn {
            let kept = fs::read_to_string(folder.join(name)).unwrap();
            assert!(
                *text == kept,
                "{name} is not what the figures beside it give"
            );
        }
        let pictures = fs::read_dir(&folder).unwrap().filter_map(Result::ok);
        let pictures =
            pictures.filter(|entry| entry.path().extension().is_some_and(|it| it == "svg"));
        assert_eq!(pictures.count(), drawn.len(), "a picture of no figures");
    }
}
