//! Plots: converts a figure in words and numbers to an SVG file. `turnpike bench plot` does this
//! for the experiments in `bench/`, so that all plots look alike and need no other program.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use plotters::prelude::*;
use plotters::style::FontFamily;
use serde::{Deserialize, Serialize};

/// Options of the plot.
#[derive(Debug, Args)]
pub struct PlotArgs {
    /// The figure as JSON: title, x, y, log_x, log_y, series of name and points
    figure: PathBuf,
    /// The SVG file to write
    svg: PathBuf,
}

/// Lines in a plane, or bars if there are words along the x axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The title above the plot.
    pub title: String,
    /// The label of the x axis, with its unit.
    pub x: String,
    /// The label of the y axis, with its unit.
    pub y: String,
    /// True if the x axis is logarithmic.
    #[serde(default)]
    pub log_x: bool,
    /// True if the y axis is logarithmic.
    #[serde(default)]
    pub log_y: bool,
    /// Words along the x axis at 0, 1, 2, …; with words, the series are drawn as bars.
    #[serde(default)]
    pub words: Vec<String>,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line, or the bars of one colour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points: x and y.
    pub points: Vec<(f64, f64)>,
}

/// Width and height.
const SIZE: (u32, u32) = (720, 420);

/// Colours that are distinguishable with any colour vision (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(160, 160, 60),
];

/// Reads a figure and writes its plot.
pub fn run(args: &PlotArgs) -> Result<()> {
    let name = args.figure.display();
    let text = std::fs::read(&args.figure).with_context(|| format!("figure {name}"))?;
    let figure: Figure = serde_json::from_slice(&text).with_context(|| format!("figure {name}"))?;
    figure.write(&args.svg)
}

impl Figure {
    /// Writes the plot as SVG.
    pub fn write(&self, file: &Path) -> Result<()> {
        let svg = self.svg()?;
        std::fs::write(file, svg)
            .with_context(|| format!("file {}: cannot be written", file.display()))
    }

    fn svg(&self) -> Result<String> {
        let points: Vec<_> =
            self.series.iter().flat_map(|series| &series.points).copied().collect();
        ensure!(!points.is_empty(), "figure \"{}\": no points", self.title);
        let finite = points.iter().all(|(x, y)| x.is_finite() && y.is_finite());
        ensure!(finite, "figure \"{}\": a point that is not a number", self.title);
        let axis = |of: fn(&(f64, f64)) -> f64, log| {
            Axis::over(points.iter().map(of), log).with_context(|| {
                format!("figure \"{}\": nothing above 0 for a logarithm", self.title)
            })
        };
        let x = match self.words.len() {
            0 => axis(|p| p.0, self.log_x)?,
            words => Axis { from: -0.5, to: words as f64 - 0.5, log: false },
        };
        let mut y = axis(|p| p.1, self.log_y)?;
        if !self.log_y && y.from > 0.0 {
            y.from = 0.0;
        }
        let mut text = String::new();
        self.draw(&mut text, x, y)
            .map_err(|error| anyhow!("figure \"{}\": {error}", self.title))?;
        Ok(text)
    }

    /// Draws everything in the coordinates of [`Axis::place`], so that one kind of plane serves all
    /// axes.
    fn draw(&self, text: &mut String, x: Axis, y: Axis) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let font = |size| (FontFamily::SansSerif, size);
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .caption(&self.title, font(17))
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x.range(), y.range())?;
        let words = |at: &f64| match self.words.get(at.round() as usize) {
            Some(word) if (at - at.round()).abs() < 0.01 => word.clone(),
            _ => String::new(),
        };
        let label = |at: &f64| if self.words.is_empty() { x.label(*at) } else { words(at) };
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&label)
            .y_label_formatter(&|at| y.label(*at))
            .x_labels(if self.words.is_empty() { 10 } else { 2 * self.words.len() + 1 })
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .label_style(font(13))
            .axis_desc_style(font(14))
            .draw()?;
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let points: Vec<_> =
                series.points.iter().map(|&(px, py)| (x.place(px), y.place(py))).collect();
            let drawn = if self.words.is_empty() {
                chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.filled())))?;
                chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            } else {
                let width = 0.8 / self.series.len() as f64;
                let left = -0.4 + width * index as f64;
                let floor = y.lower_end();
                chart.draw_series(points.iter().map(|&(px, py)| {
                    Rectangle::new([(px + left, floor), (px + left + width, py)], colour.filled())
                }))?
            };
            if self.series.len() > 1 {
                drawn.label(&series.name).legend(move |(lx, ly)| {
                    Rectangle::new([(lx, ly - 5), (lx + 12, ly + 5)], colour.filled())
                });
            }
        }
        if self.series.len() > 1 {
            let legend = SeriesLabelPosition::UpperRight;
            let mut labels = chart.configure_series_labels();
            labels.position(legend).background_style(WHITE.mix(0.8)).label_font(font(13)).draw()?;
        }
        area.present()?;
        Ok(())
    }
}

/// An axis: its range and scale.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    /// Returns an axis that covers these values with some margin; none if there is no usable value.
    fn over(values: impl Iterator<Item = f64>, log: bool) -> Option<Self> {
        let usable = values.filter(|&value| !log || value > 0.0);
        let (from, to) = usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), value| {
            (from.min(value), to.max(value))
        });
        if from > to {
            return None;
        }
        Some(match log {
            true => Self { from: from / 1.2, to: to * 1.2, log },
            false => {
                let more = ((to - from) * 0.05).max(to.abs() * 0.01).max(1e-9);
                Self { from: from - more, to: to + more, log }
            }
        })
    }

    /// Returns the coordinate of a value. A value without a logarithm is drawn at the lower end.
    fn place(self, value: f64) -> f64 {
        if self.log { value.max(self.from).log10() } else { value }
    }

    fn lower_end(self) -> f64 {
        self.place(self.from)
    }

    fn range(self) -> std::ops::Range<f64> {
        self.place(self.from)..self.place(self.to)
    }

    fn label(self, place: f64) -> String {
        let value = if self.log { 10f64.powf(place) } else { place };
        let size = value.abs();
        match size {
            _ if size < 1e-12 => "0".into(),
            _ if size >= 1e9 => format!("{:.3}G", value / 1e9).replace(".000", ""),
            _ if size >= 1e6 => short(value / 1e6) + "M",
            _ if size >= 1e4 => short(value / 1e3) + "k",
            _ => short(value),
        }
    }
}

/// Formats a number with three significant digits, without trailing zeros.
fn short(value: f64) -> String {
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let points = vec![(64.0, 10.0), (128.0, 9.0), (1518.0, 2.5)];
        Figure {
            title: "Throughput".into(),
            x: "frame, bytes".into(),
            y: "Mpps".into(),
            series: vec![
                Series { name: "ours".into(), points: points.clone() },
                Series { name: "theirs".into(), points },
            ],
            ..Figure::default()
        }
    }

    #[test]
    fn a_figure_has_its_words_and_lines() {
        let svg = figure().svg().unwrap();
        for part in ["<svg", "Throughput", "frame, bytes", "Mpps", "ours", "theirs"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("<polyline").count() - svg.matches("stroke=\"#000000\"").count(), 2);
        let log = Figure { log_x: true, log_y: true, ..figure() }.svg().unwrap();
        assert_ne!(log, svg);
    }

    #[test]
    fn bars_have_words_below() {
        let points = vec![(0.0, 5.0), (1.0, 7.0)];
        let words = vec!["mutex".to_owned(), "QSBR".to_owned()];
        let series = vec![Series { name: "rate".into(), points }];
        let svg = Figure { words, series, ..figure() }.svg().unwrap();
        assert!(svg.contains("mutex") && svg.contains("QSBR"), "{svg}");
        assert!(!svg.contains(">rate<"), "one series needs no legend");
    }

    #[test]
    fn figures_without_points_are_refused() {
        let error = |figure: Figure| figure.svg().unwrap_err().to_string();
        assert!(error(Figure { series: Vec::new(), ..figure() }).contains("no points"));
        let wrong = vec![Series { name: "x".into(), points: vec![(0.0, f64::NAN)] }];
        assert!(error(Figure { series: wrong, ..figure() }).contains("not a number"));
        let zero = vec![Series { name: "x".into(), points: vec![(0.0, 1.0)] }];
        assert!(
            error(Figure { series: zero, log_x: true, ..figure() }).contains("nothing above 0")
        );
    }

    #[test]
    fn labels_are_short() {
        let axis = Axis { from: 0.0, to: 1.0, log: false };
        let labels = [0.0, 0.25, 1.5, 1518.0, 65_536.0, 2_500_000.0].map(|at| axis.label(at));
        assert_eq!(labels, ["0", "0.25", "1.5", "1518", "65.5k", "2.5M"]);
        assert_eq!(Axis { log: true, ..axis }.label(3.0), "1000");
    }

    #[test]
    fn a_figure_is_read_as_it_is_written() {
        let json = serde_json::to_string(&figure()).unwrap();
        assert_eq!(serde_json::from_str::<Figure>(&json).unwrap(), figure());
        let error = serde_json::from_str::<Figure>("{\"title\":\"x\",\"colour\":1}").unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
    }
}
