//! Plots as SVG, by plotters: no fonts, scripts or files besides.

use plotters::coord::Shift;
use plotters::prelude::*;

/// Width and height of a plot, pixels.
const SIZE: (u32, u32) = (920, 340);

/// Colours that can be told apart, also by most who see fewer (Wong, Nature Methods 2011).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(190, 175, 20),
];

/// A curve.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// For the legend.
    pub name: String,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

/// Names of both axes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axes<'a> {
    /// Horizontal.
    pub x: &'a str,
    /// Vertical.
    pub y: &'a str,
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn svg(
    size: (u32, u32),
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Outcome,
) -> String {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let drawn = root
            .fill(&WHITE)
            .map_err(Into::into)
            .and_then(|()| draw(&root));
        let presented = drawn.and_then(|()| Ok(root.present()?));
        if presented.is_err() {
            drop(root);
            return String::from("<p>There is nothing to be drawn.</p>");
        }
    }
    text
}

/// Smallest and largest finite value, widened if they are the same.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|v| v.is_finite());
    let (least, most) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
        (a.min(v), b.max(v))
    });
    match (least.is_finite(), most > least) {
        (false, _) => (0.0, 1.0),
        (true, false) => (least - 0.5, least + 0.5),
        (true, true) => (least, most),
    }
}

/// Curves over a common x axis, from 0 upwards.
pub(crate) fn lines(axes: Axes<'_>, curves: &[Curve]) -> String {
    let all = || curves.iter().flat_map(|c| c.points.iter());
    let (x0, x1) = range(all().map(|p| p.0));
    let (_, y1) = range(all().map(|p| p.1).chain([0.0]));
    svg(SIZE, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(x0..x1, 0.0..y1 * 1.05)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(axes.x)
            .y_desc(axes.y)
            .light_line_style(WHITE.mix(0.0))
            .draw()?;
        for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(1);
            let series = LineSeries::new(curve.points.iter().copied(), style);
            let drawn = chart.draw_series(series)?;
            if curves.len() > 1 {
                drawn.label(curve.name.as_str()).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], style.stroke_width(3))
                });
            }
        }
        if curves.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperRight)
                .background_style(WHITE.mix(0.85))
                .border_style(BLACK.mix(0.2))
                .draw()?;
        }
        Ok(())
    })
}

/// The share of values that are not above x, with x in powers of ten.
#[allow(clippy::cast_precision_loss, reason = "counts of flows")]
pub(crate) fn distribution(axes: Axes<'_>, mut values: Vec<f64>) -> String {
    values.retain(|v| v.is_finite() && *v > 0.0);
    values.sort_by(f64::total_cmp);
    let n = values.len().max(1) as f64;
    // As many steps as pixels.
    let stride = (values.len() / 900).max(1);
    let share = |i: usize| (i + 1) as f64 / n;
    let mut points: Vec<(f64, f64)> = values
        .iter()
        .enumerate()
        .filter(|(i, _)| i % stride == 0 || i + 1 == values.len())
        .map(|(i, v)| (*v, share(i)))
        .collect();
    if let Some(first) = points.first().copied() {
        points.insert(0, (first.0, 0.0));
    }
    let (x0, x1) = range(values.iter().copied());
    let x0 = x0.max(1e-9);
    svg(SIZE, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d((x0..x1.max(x0 * 1.01)).log_scale(), 0.0..1.0)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(axes.x)
            .y_desc(axes.y)
            .light_line_style(WHITE.mix(0.0))
            .draw()?;
        chart.draw_series(LineSeries::new(points, COLOURS[0].stroke_width(2)))?;
        Ok(())
    })
}

/// Rows of values over time, from white to `full`; the longest names on the left.
#[allow(clippy::cast_precision_loss, reason = "a few hundred cells")]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    reason = "pixels"
)]
pub(crate) fn heat(x: &str, end: f64, rows: &[(String, Vec<f64>)], full: f64) -> String {
    let columns = rows.iter().map(|r| r.1.len()).max().unwrap_or(0);
    if columns == 0 {
        return String::from("<p>There is nothing to be drawn.</p>");
    }
    let (left, top, row_height) = (150_i32, 8_i32, 14_i32);
    let size = (SIZE.0, (rows.len() as i32 * row_height + 48 + top) as u32);
    let width = (SIZE.0 as i32 - left - 16) as f64 / columns as f64;
    svg(size, |root| {
        let text = ("sans-serif", 11).into_font();
        for (i, (name, values)) in rows.iter().enumerate() {
            let y = top + i as i32 * row_height;
            root.draw(&Text::new(name.as_str(), (6, y + 2), text.clone()))?;
            for (start, stop, value) in runs(values) {
                let shade = (value / full).clamp(0.0, 1.0);
                let colour = colour(shade);
                let from = left + (start as f64 * width) as i32;
                let to = left + (stop as f64 * width).ceil() as i32;
                root.draw(&Rectangle::new(
                    [(from, y), (to, y + row_height - 2)],
                    colour.filled(),
                ))?;
            }
        }
        let bottom = top + rows.len() as i32 * row_height + 4;
        for tick in 0..=4 {
            let at = left + (f64::from(tick) / 4.0 * width * columns as f64) as i32;
            let label = super::table::short(end * f64::from(tick) / 4.0);
            root.draw(&Text::new(label, (at - 12, bottom), text.clone()))?;
        }
        root.draw(&Text::new(x.to_owned(), (left, bottom + 18), text))?;
        Ok(())
    })
}

/// Cells next to each other with the same shade, as one: start, end and value.
fn runs(values: &[f64]) -> Vec<(usize, usize, f64)> {
    let mut runs: Vec<(usize, usize, f64)> = Vec::new();
    for (i, &value) in values.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if (run.2 - value).abs() < 1e-9 => run.1 = i + 1,
            _ => runs.push((i, i + 1, value)),
        }
    }
    runs
}

/// From almost white over yellow to dark red.
fn colour(shade: f64) -> RGBColor {
    const STOPS: [(f64, [f64; 3]); 4] = [
        (0.0, [247.0, 247.0, 247.0]),
        (0.33, [254.0, 217.0, 118.0]),
        (0.67, [240.0, 90.0, 40.0]),
        (1.0, [103.0, 0.0, 13.0]),
    ];
    let above = STOPS
        .iter()
        .position(|s| shade <= s.0)
        .unwrap_or(STOPS.len() - 1);
    let (to, b) = STOPS[above];
    let (from, a) = STOPS[above.saturating_sub(1)];
    let part = if to > from {
        (shade - from) / (to - from)
    } else {
        1.0
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between two colours"
    )]
    let mixed = |i: usize| (a[i] + (b[i] - a[i]) * part).round() as u8;
    RGBColor(mixed(0), mixed(1), mixed(2))
}

/// Points, some of them marked.
pub(crate) fn scatter(axes: Axes<'_>, points: &[(f64, f64, bool)]) -> String {
    let (x0, x1) = range(points.iter().map(|p| p.0));
    let (y0, y1) = range(points.iter().map(|p| p.1));
    let (dx, dy) = ((x1 - x0) * 0.05, (y1 - y0) * 0.05);
    svg(SIZE, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(x0 - dx..x1 + dx, y0 - dy..y1 + dy)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(axes.x)
            .y_desc(axes.y)
            .light_line_style(WHITE.mix(0.0))
            .draw()?;
        let dots = points.iter().filter(|p| p.0.is_finite() && p.1.is_finite());
        chart.draw_series(dots.map(|&(x, y, best)| {
            let (size, colour) = if best {
                (6, COLOURS[1])
            } else {
                (3, COLOURS[6])
            };
            Circle::new((x, y), size, colour.filled())
        }))?;
        Ok(())
    })
}
