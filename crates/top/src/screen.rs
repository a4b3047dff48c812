//! The terminal while the view has it, restored in any case but SIGKILL.

use std::io::{self, IsTerminal, Stdout};
use std::panic;

use anyhow::{Result, bail};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Position, Rect};

use super::app::App;
use super::draw::{Look, draw};

/// The terminal; restored when this is dropped, and at a panic of any thread.
pub struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// There is none, or it cannot move its cursor.
    pub fn open() -> Result<Self> {
        const BATCH: &str = "print text by turnpike top --batch";
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            bail!("input and output are not a terminal; {BATCH}");
        }
        if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
            bail!("$TERM: the terminal cannot move its cursor; {BATCH}");
        }
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            usual(panic);
        }));
        let mut screen = Self(Terminal::new(CrosstermBackend::new(io::stdout()))?);
        screen.take()?;
        Ok(screen)
    }

    /// Takes the terminal again, after others had it.
    ///
    /// # Errors
    /// The terminal has gone.
    pub fn take(&mut self) -> Result<()> {
        // The modes of the terminal now are those to be restored.
        let _ = disable_raw_mode();
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        self.0.hide_cursor()?;
        // Clears it. `Terminal::clear` would ask where the cursor is, which not every terminal answers.
        let size = self.0.size()?;
        Ok(self.0.resize(Rect::from((Position::ORIGIN, size)))?)
    }

    /// Lets others have it.
    pub fn give_back(&mut self) {
        restore();
    }

    /// Draws the state.
    ///
    /// # Errors
    /// The terminal has gone.
    pub fn draw(&mut self, app: &mut App, look: Look) -> Result<()> {
        self.0.draw(|frame| draw(app, look, frame.area(), frame.buffer_mut()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// A terminal that has gone needs nothing.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}
