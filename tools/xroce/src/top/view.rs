//! What is on the screen, and what keys do to it.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row, Table};

use super::rows::{self, Cell};
use crate::stat::sample::{Span, state};

/// Rows that a page key scrolls by.
const PAGE: usize = 10;
/// Widest cell: names of programs may be long.
const CELL_MAX: usize = 24;

/// Which list is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum List {
    Sessions,
    Qps,
}

/// Whether the user has seen enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    Yes,
    No,
}

/// What is shown of the samples, and how.
#[derive(Clone, Debug)]
pub(super) struct View {
    list: List,
    /// Column sorted by, of each list.
    sort: [usize; 2],
    /// Smallest first.
    ascending: bool,
    /// Rows scrolled past.
    skip: usize,
}

impl View {
    pub(super) const fn new(qps: bool) -> Self {
        Self {
            list: if qps { List::Qps } else { List::Sessions },
            sort: [rows::SESSION_SORT, rows::QP_SORT],
            ascending: false,
            skip: 0,
        }
    }

    const fn head(&self) -> &'static [&'static str] {
        match self.list {
            List::Sessions => &rows::SESSION_HEAD,
            List::Qps => &rows::QP_HEAD,
        }
    }

    const fn column(&mut self) -> &mut usize {
        let [sessions, qps] = &mut self.sort;
        match self.list {
            List::Sessions => sessions,
            List::Qps => qps,
        }
    }

    const fn sorted_by(&self) -> usize {
        let [sessions, qps] = self.sort;
        match self.list {
            List::Sessions => sessions,
            List::Qps => qps,
        }
    }

    /// A key, with so many rows there to scroll through.
    pub(super) fn press(&mut self, key: KeyEvent, rows: usize) -> Done {
        let last = self.head().len().saturating_sub(1);
        let end = rows.saturating_sub(1);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Done::Yes;
            }
            KeyCode::Char('q') | KeyCode::Esc => return Done::Yes,
            KeyCode::Tab | KeyCode::BackTab => {
                self.list = match self.list {
                    List::Sessions => List::Qps,
                    List::Qps => List::Sessions,
                };
                self.skip = 0;
            }
            KeyCode::Left => *self.column() = self.sorted_by().saturating_sub(1),
            KeyCode::Right => *self.column() = (self.sorted_by() + 1).min(last),
            KeyCode::Char('r') => self.ascending = !self.ascending,
            KeyCode::Up => self.skip = self.skip.saturating_sub(1),
            KeyCode::Down => self.skip = (self.skip + 1).min(end),
            KeyCode::PageUp => self.skip = self.skip.saturating_sub(PAGE),
            KeyCode::PageDown => self.skip = (self.skip + PAGE).min(end),
            KeyCode::Home => self.skip = 0,
            KeyCode::End => self.skip = end,
            _ => {}
        }
        Done::No
    }

    /// The rows of the list, in order.
    pub(super) fn rows(&self, span: &Span<'_>) -> Vec<Vec<Cell>> {
        let mut rows = match self.list {
            List::Sessions => rows::sessions(span),
            List::Qps => rows::qps(span),
        };
        let by = self.sorted_by();
        // Stable: rows that are equal stay in the order of their numbers.
        rows.sort_by(|a, b| match (a.get(by), b.get(by)) {
            (Some(a), Some(b)) if self.ascending => a.order(b),
            (Some(a), Some(b)) => b.order(a),
            _ => std::cmp::Ordering::Equal,
        });
        rows
    }

    /// Draws everything.
    pub(super) fn draw(&self, span: &Span<'_>, frame: &mut Frame<'_>) {
        let devices = u16::try_from(span.now.report.devices.len()).unwrap_or(u16::MAX);
        let [top, device_area, title, list, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(devices.saturating_add(2)),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let report = &span.now.report;
        let line = format!(
            "xroced {}  sessions {}  queue pairs {}  closed for cause {}  resident {} MB",
            report.release,
            report.sessions,
            span.now.qps.len(),
            report.expelled,
            report.rss / 1_000_000
        );
        frame.render_widget(Line::from(line), top);
        draw_devices(span, frame, device_area);
        self.draw_list(span, frame, [title, list]);
        let help = "Tab sessions/queue pairs  ←→ sort  r reverse  ↑↓ scroll  q end";
        let dim = Style::new().add_modifier(Modifier::DIM);
        frame.render_widget(Paragraph::new(help).style(dim), keys);
    }

    fn draw_list(&self, span: &Span<'_>, frame: &mut Frame<'_>, [title, area]: [Rect; 2]) {
        let rows = self.rows(span);
        let name = match self.list {
            List::Sessions => "sessions",
            List::Qps => "queue pairs",
        };
        let by = self.head().get(self.sorted_by()).copied().unwrap_or("");
        let order = if self.ascending { "up" } else { "down" };
        let what = if span.seconds.is_some() {
            "per second"
        } else {
            "since the beginning, rates follow"
        };
        let from = (self.skip + 1).min(rows.len());
        let line = format!("{name} {from} to {} by {by}, {order}; {what}", rows.len());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Line::styled(line, bold), title);
        let cells = rows.into_iter().skip(self.skip);
        let cells: Vec<Vec<String>> = cells
            .map(|row| row.into_iter().map(|cell| cell.text).collect())
            .collect();
        // Text on the left, numbers on the right.
        let is_text = |n: usize| {
            matches!(
                self.head().get(n),
                Some(&("program" | "device" | "state" | "peer"))
            )
        };
        let marked = Some(self.sorted_by());
        frame.render_widget(grid(self.head(), marked, &cells, is_text), area);
    }
}

fn draw_devices(span: &Span<'_>, frame: &mut Frame<'_>, area: Rect) {
    let head = [
        "device",
        "state",
        "tx packets",
        "rx packets",
        "tx bits",
        "rx bits",
        "compl.",
        "busy",
        "asleep",
        "core",
        "port",
    ];
    let row = |device| {
        let r = span.device(device);
        let mut cells = vec![device.device.clone(), state(device).to_owned()];
        cells.extend(r.cells());
        cells.push(device.port.clone());
        cells
    };
    let rows: Vec<Vec<String>> = span.now.report.devices.iter().map(row).collect();
    let is_text = |n| n <= 1 || n == 10;
    frame.render_widget(grid(&head, None, &rows, is_text), area);
}

/// A table as wide as what is in it; the `marked` column is the one sorted by.
fn grid(
    head: &[&str],
    marked: Option<usize>,
    rows: &[Vec<String>],
    is_text: impl Fn(usize) -> bool,
) -> Table<'static> {
    let align = |n: usize, text: String| {
        let side = if is_text(n) {
            Alignment::Left
        } else {
            Alignment::Right
        };
        Text::from(text).alignment(side)
    };
    let width = |n: usize, name: &str| {
        let cells = rows.iter().filter_map(|row| row.get(n));
        let longest = cells.map(|text| text.chars().count()).max().unwrap_or(0);
        let wanted = longest.min(CELL_MAX).max(name.chars().count());
        Constraint::Length(u16::try_from(wanted).unwrap_or(u16::MAX))
    };
    let widths: Vec<Constraint> = head
        .iter()
        .enumerate()
        .map(|(n, name)| width(n, name))
        .collect();
    let names = head.iter().enumerate().map(|(n, name)| {
        let text = align(n, (*name).to_owned());
        if marked == Some(n) {
            text.style(Style::new().add_modifier(Modifier::REVERSED))
        } else {
            text.style(Style::new().add_modifier(Modifier::UNDERLINED))
        }
    });
    let header = Row::new(names.collect::<Vec<_>>());
    let body = rows.iter().map(|row| {
        let cells = row
            .iter()
            .enumerate()
            .map(|(n, text)| align(n, text.clone()));
        Row::new(cells.collect::<Vec<_>>())
    });
    Table::new(body.collect::<Vec<_>>(), widths)
        .header(header)
        .column_spacing(2)
}
