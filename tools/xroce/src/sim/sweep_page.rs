//! A sweep as a table and as a page.

use xroce_bench_report::escape;

use super::html::{document, rows};
use super::plot::{Axes, scatter};
use super::sweep::{Point, Sweep};
use super::table::{right, short, table as framed};

/// Rows of the table on the terminal, at most: the best ones first.
const ROWS: usize = 60;

fn head(sweep: &Sweep) -> Vec<String> {
    let best = [String::from("best")].into_iter();
    let keys = sweep.keys.iter().cloned();
    best.chain(keys)
        .chain(sweep.objectives.iter().map(|o| o.name()))
        .collect()
}

fn cells(sweep: &Sweep, point: &Point) -> Vec<String> {
    let mut cells = vec![String::from(if point.best { "*" } else { "" })];
    cells.extend(point.values.iter().cloned());
    match &point.error {
        Some(error) => cells.push(error.clone()),
        None => cells.extend(point.results.iter().map(|r| short(*r))),
    }
    cells.resize(1 + sweep.keys.len() + sweep.objectives.len(), String::new());
    cells
}

/// The best first, then as they were run.
fn sorted(sweep: &Sweep) -> Vec<&Point> {
    let mut points: Vec<&Point> = sweep.points.iter().collect();
    points.sort_by_key(|p| (!p.best, p.error.is_some()));
    points
}

/// For people.
pub(crate) fn table(sweep: &Sweep) -> String {
    let mut table = framed(head(sweep));
    for point in sorted(sweep).into_iter().take(ROWS) {
        table.add_row(cells(sweep, point));
    }
    right(&mut table, 1 + sweep.keys.len());
    let left_out = sweep.points.len().saturating_sub(ROWS);
    let more = if left_out > 0 {
        format!("\nand {left_out} more in the report")
    } else {
        String::new()
    };
    format!("{table}{more}\n{}", verdict(sweep))
}

/// Which combinations nothing beats.
fn verdict(sweep: &Sweep) -> String {
    let names: Vec<String> = sweep
        .objectives
        .iter()
        .map(|o| {
            let way = if o.is_large() { "large" } else { "small" };
            format!("{} {way}", o.name())
        })
        .collect();
    let best = sweep.points.iter().filter(|p| p.best).count();
    format!(
        "{best} of {} combinations (*) are beaten by none in {}",
        sweep.points.len(),
        names.join(", ")
    )
}

/// As a page: the table, and every two objectives against each other.
pub(crate) fn page(sweep: &Sweep) -> String {
    let mut body = format!("<p class=\"note\">{}</p>", escape(&verdict(sweep)));
    let n = sweep.objectives.len();
    for (i, j) in (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))) {
        let names = [i, j].map(|k| sweep.objectives[k].name());
        let point = |p: &Point| Some((*p.results.get(i)?, *p.results.get(j)?, p.best));
        let points: Vec<_> = sweep.points.iter().filter_map(point).collect();
        body.push_str(&format!(
            "<h2>{} and {}</h2>",
            escape(&names[0]),
            escape(&names[1])
        ));
        body.push_str(&scatter(
            Axes {
                x: &names[0],
                y: &names[1],
            },
            &points,
        ));
    }
    let mut all = vec![head(sweep)];
    all.extend(sorted(sweep).into_iter().map(|p| cells(sweep, p)));
    body.push_str("<h2>All combinations</h2>");
    body.push_str(&rows(&all));
    document(&format!("{}: sweep", sweep.name), &body)
}
