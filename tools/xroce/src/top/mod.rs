//! `xroce top`: what the daemon does, live.

mod rows;
mod screen;
mod view;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use xroce_control::SOCKET_DEFAULT;
use xroce_control::client::Client;
use xroce_engine::clock;
use xroce_proto::time::Duration as Span;

use crate::stat::sample::{self, Sample};
use crate::{stat, stop};
use screen::Screen;
use view::{Done, View};

/// Columns of a frame that goes to a file or a pipe.
const WIDTH: u16 = 170;
/// Lines of such a frame beside those of devices, sessions and queue pairs.
const LINES: usize = 8;
/// A key or a signal is looked for so often.
const NAP: Duration = Duration::from_millis(100);

/// `xroce top`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Keys: Tab switches between sessions and queue pairs, ← and → choose the column to sort by, r reverses, \
↑ ↓ PgUp PgDn scroll, q ends.")]
pub(crate) struct TopArgs {
    /// The daemon's socket
    #[arg(long, default_value = SOCKET_DEFAULT, value_name = "PATH")]
    pub socket: PathBuf,
    /// Time between two looks
    #[arg(long, default_value = "1", value_parser = stat::interval, value_name = "SECONDS")]
    pub interval: Duration,
    /// Begin with queue pairs instead of sessions
    #[arg(long)]
    pub qps: bool,
    /// Print one frame as text and end
    #[arg(long)]
    pub once: bool,
}

/// Shows what the daemon does until the user has seen enough.
///
/// # Errors
/// No daemon, it does not answer, or this is no terminal.
pub(crate) fn run(args: &TopArgs, out: &mut dyn Write) -> Result<()> {
    ensure!(
        args.interval >= NAP,
        "--interval: give at least {} s",
        NAP.as_secs_f64()
    );
    let client = stat::connect(&args.socket, "xroce top")?;
    stop::install()?;
    let view = View::new(args.qps);
    if args.once {
        let before = Sample::take(&client)?;
        stat::rest(args.interval)?;
        let now = Sample::take(&client)?;
        let frame = once(&view, &sample::Span::new(&now, Some(&before)))?;
        return Ok(writeln!(out, "{frame}")?);
    }
    ensure!(
        std::io::stdout().is_terminal(),
        "top needs a terminal; --once prints one frame"
    );
    live(args, &client, view)
}

/// One frame as text, as long as it needs to be.
fn once(view: &View, span: &sample::Span<'_>) -> Result<String> {
    let listed = span.now.sessions.len().max(span.now.qps.len());
    let height = span.now.report.devices.len() + listed + LINES;
    let height = u16::try_from(height).unwrap_or(u16::MAX);
    let mut terminal = Terminal::new(TestBackend::new(WIDTH, height))?;
    terminal.draw(|frame| view.draw(span, frame))?;
    Ok(text(terminal.backend().buffer()))
}

/// A buffer as lines, without what is empty at their ends and below.
fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width.max(1));
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned()
    };
    let lines: Vec<String> = buffer.content.chunks(width).map(line).collect();
    lines.join("\n").trim_end().to_owned()
}

fn live(args: &TopArgs, client: &Client, mut view: View) -> Result<()> {
    let mut screen = Screen::open().context("opening the terminal")?;
    let nanos = u64::try_from(args.interval.as_nanos()).unwrap_or(u64::MAX);
    let interval = Span::from_nanos(nanos);
    let mut before = None;
    let mut now = Sample::take(client)?;
    loop {
        let span = sample::Span::new(&now, before.as_ref());
        let rows = view.rows(&span).len();
        screen.draw(|frame| view.draw(&span, frame))?;
        if stop::requested() {
            return Ok(());
        }
        // A key or another size is shown at once, without another look at the daemon.
        if event::poll(NAP)? && pressed(&mut view, &event::read()?, rows) == Done::Yes {
            return Ok(());
        }
        if clock::now().since(now.at) >= interval {
            let next = Sample::take(client)?;
            before = Some(std::mem::replace(&mut now, next));
        }
    }
}

fn pressed(view: &mut View, event: &Event, rows: usize) -> Done {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => view.press(*key, rows),
        _ => Done::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::sample::tests::sample;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    fn frame(view: &View, width: u16, height: u16) -> String {
        let (before, now) = (sample(1), sample(3));
        let span = sample::Span::new(&now, Some(&before));
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(&span, frame)).unwrap();
        text(terminal.backend().buffer())
    }

    fn press(view: &mut View, code: KeyCode, rows: usize) -> Done {
        view.press(KeyEvent::new(code, KeyModifiers::NONE), rows)
    }

    #[test]
    fn a_frame_has_devices_and_sessions_the_busiest_first() {
        let text = frame(&View::new(false), 160, 20);
        println!("{text}");
        for words in ["eth1", "1.00k", "64.0M", "25 %", "50 %", "40 %", "stalled"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let at = |words: &str| text.find(words).unwrap();
        assert!(at("kv") < at("copy"), "{text}");
        assert!(text.contains("18.0") && text.contains("30.0"), "{text}");
    }

    #[test]
    fn keys_switch_sort_scroll_and_end() {
        let mut view = View::new(false);
        assert_eq!(press(&mut view, KeyCode::Tab, 2), Done::No);
        let text = frame(&view, 160, 20);
        println!("{text}");
        assert!(
            text.contains("RC RTS") && text.contains("retransm."),
            "{text}"
        );
        // 18 sends twice as much as 17, and 19 nothing.
        let order = |text: &str| {
            let rows = text.lines().filter(|l| l.contains("RC RTS"));
            let qpn = |l: &str| l.split_whitespace().nth(1).unwrap().to_owned();
            rows.map(qpn).collect::<Vec<_>>()
        };
        assert_eq!(order(&text), ["18", "17", "19"]);
        press(&mut view, KeyCode::Char('r'), 3);
        assert_eq!(order(&frame(&view, 160, 20)), ["19", "17", "18"]);
        // To the leftmost column, sessions, and one to the right: numbers of queue pairs.
        for _ in 0..30 {
            press(&mut view, KeyCode::Left, 3);
        }
        press(&mut view, KeyCode::Right, 3);
        assert_eq!(order(&frame(&view, 160, 20)), ["17", "18", "19"]);
        press(&mut view, KeyCode::Down, 3);
        assert_eq!(order(&frame(&view, 160, 20)), ["18", "19"]);
        for _ in 0..9 {
            press(&mut view, KeyCode::PageDown, 3);
        }
        assert_eq!(order(&frame(&view, 160, 20)), ["19"]);
        assert_eq!(press(&mut view, KeyCode::Char('q'), 3), Done::Yes);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.press(control, 3), Done::Yes);
    }

    #[test]
    fn any_size_of_a_terminal_will_do() {
        for (width, height) in [(1, 1), (20, 3), (80, 24), (300, 100)] {
            for qps in [false, true] {
                frame(&View::new(qps), width, height);
            }
        }
    }

    #[test]
    fn one_frame_as_text_shows_every_row() {
        let (before, now) = (sample(1), sample(3));
        let span = sample::Span::new(&now, Some(&before));
        let text = once(&View::new(true), &span).unwrap();
        assert_eq!(text.matches("RC RTS").count(), 3, "{text}");
    }
}
