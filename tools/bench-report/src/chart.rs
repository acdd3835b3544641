//! Plots as SVG, by plotters: no fonts, scripts or files besides.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::{Axis, Bar, Curve, Plot, Scale, Ticks};

/// Width and height of a plot, pixels.
const SIZE: (u32, u32) = (920, 380);
/// Curves of a plot, at most: more cannot be told apart.
const CURVES: usize = 16;
/// Points of a curve that are drawn, at most: as many as there are pixels.
const POINTS: usize = 1000;

/// Colours that can be told apart, also by most who see fewer (Wong, Nature Methods 2011).
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 60, 20),
    RGBColor(190, 175, 20),
    RGBColor(90, 90, 90),
];
/// Of ceilings and peers.
const GREYS: [RGBColor; 3] = [
    RGBColor(70, 70, 70),
    RGBColor(130, 130, 130),
    RGBColor(175, 175, 175),
];

type Outcome = Result<(), Box<dyn Error>>;

/// What takes the place of a plot that has nothing to show.
const NOTHING: &str = "<p class=\"note\">There is nothing to be drawn.</p>";

fn svg(
    size: (u32, u32),
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Outcome,
) -> String {
    let mut text = String::new();
    let drawn = {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)
            .map_err(Into::into)
            .and_then(|()| draw(&root))
            .and_then(|()| Ok(root.present()?))
    };
    match drawn {
        Ok(()) => text,
        Err(_) => NOTHING.to_owned(),
    }
}

/// Least and most of an axis, a little room included; `None` if there is nothing on it.
fn range(scale: Scale, values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (least, most) = values
        .filter(|v| is_drawn(scale, *v))
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
            (a.min(v), b.max(v))
        });
    match scale {
        _ if !least.is_finite() => None,
        Scale::Linear => Some((0.0, if most > 0.0 { most * 1.05 } else { 1.0 })),
        Scale::Log if most > least => Some((least, most * 1.1)),
        Scale::Log => Some((least / 2.0, least * 2.0)),
    }
}

fn is_drawn(scale: Scale, v: f64) -> bool {
    v.is_finite() && (scale == Scale::Linear || v > 0.0)
}

/// "64 B", "3 M", "50 %".
fn tick(ticks: Ticks, v: f64) -> String {
    let short = |v: f64| {
        let text = format!("{v:.6}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        text.to_owned()
    };
    let scaled = |step: f64, names: [&str; 4]| {
        let (mut v, mut at) = (v, 0);
        while v >= step && at + 1 < names.len() {
            v /= step;
            at += 1;
        }
        format!("{} {}", short(v), names.get(at).unwrap_or(&""))
    };
    match ticks {
        Ticks::Count => scaled(1000.0, ["", "k", "M", "G"]).trim_end().to_owned(),
        Ticks::Bytes => scaled(1024.0, ["B", "KB", "MB", "GB"]),
        Ticks::Share => format!("{} %", short(v * 100.0)),
    }
}

/// A plot; a paragraph that says so where there is nothing to draw.
pub(crate) fn plot(plot: &Plot) -> String {
    let on = |part: fn(&(f64, f64)) -> f64| plot.curves.iter().flat_map(|c| &c.points).map(part);
    let (Some(x), Some(y)) = (
        range(plot.x.scale, on(|p| p.0)),
        range(plot.y.scale, on(|p| p.1)),
    ) else {
        return NOTHING.to_owned();
    };
    let base = |axis: &Axis| {
        if axis.ticks == Ticks::Bytes {
            2.0
        } else {
            10.0
        }
    };
    let log = |axis: &Axis, (from, to): (f64, f64)| (from..to).log_scale().base(base(axis));
    match (plot.x.scale, plot.y.scale) {
        (Scale::Linear, Scale::Linear) => draw(plot, x.0..x.1, y.0..y.1),
        (Scale::Linear, Scale::Log) => draw(plot, x.0..x.1, log(&plot.y, y)),
        (Scale::Log, Scale::Linear) => draw(plot, log(&plot.x, x), y.0..y.1),
        (Scale::Log, Scale::Log) => draw(plot, log(&plot.x, x), log(&plot.y, y)),
    }
}

fn draw<X, Y>(plot: &Plot, x: X, y: Y) -> String
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    svg(SIZE, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(plot.x.name.as_str())
            .y_desc(plot.y.name.as_str())
            .x_labels(11)
            .y_labels(9)
            .x_label_formatter(&|v| tick(plot.x.ticks, *v))
            .y_label_formatter(&|v| tick(plot.y.ticks, *v))
            .light_line_style(WHITE.mix(0.0))
            .draw()?;
        let (mut ours, mut peers) = (COLOURS.iter().cycle(), GREYS.iter().cycle());
        for curve in plot.curves.iter().take(CURVES) {
            let colours = if curve.is_peer { &mut peers } else { &mut ours };
            let style = colours.next().unwrap_or(&BLACK).stroke_width(2);
            let points = thinned(plot, curve);
            if points.len() <= 40 {
                let dots = points.iter().map(|&p| Circle::new(p, 3, style.filled()));
                chart.draw_series(dots)?;
            }
            let series = LineSeries::new(points, style);
            chart
                .draw_series(series)?
                .label(curve.name.as_str())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], style.stroke_width(3))
                });
        }
        chart
            .configure_series_labels()
            .position(legend_place(plot))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .draw()?;
        Ok(())
    })
}

/// Where curves leave room: those that fall over x do on the right, those that rise on the left
/// above; distributions do below.
fn legend_place(plot: &Plot) -> SeriesLabelPosition {
    let ends = |c: &Curve| Some((c.points.first()?.1, c.points.last()?.1));
    let rising = plot.curves.iter().filter_map(ends).filter(|(a, b)| b > a);
    match plot.y.ticks {
        Ticks::Share if plot.y.scale == Scale::Linear => SeriesLabelPosition::LowerRight,
        _ if rising.count() * 2 > plot.curves.len() => SeriesLabelPosition::UpperLeft,
        _ => SeriesLabelPosition::UpperRight,
    }
}

/// What can be drawn of a curve, the last point always.
fn thinned(plot: &Plot, curve: &Curve) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = curve
        .points
        .iter()
        .copied()
        .filter(|p| is_drawn(plot.x.scale, p.0) && is_drawn(plot.y.scale, p.1))
        .collect();
    let stride = points.len().div_ceil(POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let mut at = 0;
    points.retain(|_| {
        let keeps = at % stride == 0 || at == last;
        at += 1;
        keeps
    });
    points
}

/// Bars of parts, one below the other, with a common legend.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "pixels, of at most a thousand bars"
)]
pub(crate) fn bars(bars: &[Bar]) -> String {
    const HEIGHT: i32 = 22;
    const STEP: i32 = 48;
    const LEFT: i32 = 12;
    const LEGEND: i32 = 20;
    let mut names: Vec<&str> = Vec::new();
    for part in bars.iter().flat_map(|b| &b.parts) {
        if !names.contains(&part.name.as_str()) {
            names.push(&part.name);
        }
    }
    if names.is_empty() {
        return NOTHING.to_owned();
    }
    let colour = |name: &str| {
        let at = names.iter().position(|n| *n == name).unwrap_or(0);
        COLOURS[at % COLOURS.len()]
    };
    let columns = 5;
    let legend = names.len().div_ceil(columns) as i32 * LEGEND;
    let height = bars.len() as i32 * STEP + legend + 16;
    let width = f64::from(SIZE.0 as i32 - 2 * LEFT);
    svg((SIZE.0, height as u32), |root| {
        let text = ("sans-serif", 13).into_font();
        for (i, bar) in bars.iter().enumerate() {
            let y = 4 + i as i32 * STEP;
            let title = format!("{}, {}", bar.name, bar.of);
            root.draw(&Text::new(title, (LEFT, y), text.clone()))?;
            let mut from = 0.0;
            for part in &bar.parts {
                let to = from + part.share;
                let x = |share: f64| LEFT + (share.min(1.0) * width) as i32;
                let corners = [(x(from), y + 16), (x(to), y + 16 + HEIGHT)];
                root.draw(&Rectangle::new(corners, colour(&part.name).filled()))?;
                if part.share >= 0.05 {
                    let label = format!("{:.0} %", part.share * 100.0);
                    let white = text.clone().color(&WHITE);
                    root.draw(&Text::new(label, (x(from) + 4, y + 20), white))?;
                }
                from = to;
            }
        }
        let top = bars.len() as i32 * STEP + 10;
        for (i, name) in names.iter().enumerate() {
            let x = LEFT + (i % columns) as i32 * (width as i32 / columns as i32);
            let y = top + (i / columns) as i32 * LEGEND;
            let square = [(x, y), (x + 12, y + 12)];
            root.draw(&Rectangle::new(square, colour(name).filled()))?;
            root.draw(&Text::new((*name).to_owned(), (x + 18, y), text.clone()))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn numbers_of_axes() {
        for (ticks, value, text) in [
            (Ticks::Bytes, 2.0, "2 B"),
            (Ticks::Bytes, 4096.0, "4 KB"),
            (Ticks::Bytes, 1048576.0, "1 MB"),
            (Ticks::Count, 0.0, "0"),
            (Ticks::Count, 10_000.0, "10 k"),
            (Ticks::Count, 2.5e6, "2.5 M"),
            (Ticks::Share, 0.999, "99.9 %"),
            (Ticks::Share, 0.00001, "0.001 %"),
        ] {
            assert_eq!(tick(ticks, value), text);
        }
    }

    #[test]
    fn every_pair_of_scales_is_drawn() {
        let mut one = run().plots.remove(0);
        for x in [Scale::Linear, Scale::Log] {
            for y in [Scale::Linear, Scale::Log] {
                (one.x.scale, one.y.scale) = (x, y);
                let svg = plot(&one);
                assert!(svg.starts_with("<svg"), "{x:?} {y:?}: {svg}");
                assert!(svg.contains("SEND &lt;1&gt;"), "{svg}");
            }
        }
        one.curves.truncate(1);
        one.curves[0].points = vec![(0.0, 0.0)];
        assert_eq!(plot(&one), NOTHING);
        one.curves.clear();
        assert_eq!(plot(&one), NOTHING);
    }

    #[test]
    fn the_ends_of_long_curves_stay() {
        let mut one = run().plots.remove(0);
        let points = (1..=100_000).map(|i| (f64::from(i), 1.0));
        one.curves[0].points = points.collect();
        let thin = thinned(&one, &one.curves[0]);
        assert!(thin.len() <= POINTS + 1, "{}", thin.len());
        assert_eq!(thin.first().unwrap().0, 1.0);
        assert_eq!(thin.last().unwrap().0, 100_000.0);
    }

    #[test]
    fn stacked_bars() {
        let svg = bars(&run().bars);
        assert!(
            svg.contains("88 %") && svg.contains("WRITE of 64 KB"),
            "{svg}"
        );
        assert_eq!(bars(&[]), NOTHING);
    }
}
