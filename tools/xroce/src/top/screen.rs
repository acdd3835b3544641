//! The terminal, given back as it was however the program ends.

use std::io::Stdout;

use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};

/// A terminal taken over.
#[derive(Debug)]
pub(super) struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes it over; a panic gives it back first.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn open() -> std::io::Result<Self> {
        ratatui::try_init().map(Self)
    }

    /// Draws a frame, in the size the terminal has now.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> std::io::Result<()> {
        self.0.draw(draw).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = ratatui::try_restore();
    }
}
