//! The loop of the view: takes samples, keys and signals as they come, and draws.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use super::Options;
use super::app::{App, Then};
use super::draw::Look;
use super::sample::{Sample, Source, Wanted};
use super::screen::Screen;
use super::text::Charset;

/// The pause after answers is at least this multiple of the time that they took, which is more than the router's own.
const LEAVE: u32 = 5;

/// A pause that is long enough for any router.
const MOST_PAUSE: Duration = Duration::from_secs(5);

/// Least time between two samples, however fast panels are turned.
const LEAST_PAUSE: Duration = Duration::from_millis(200);

/// An event of the loop.
enum Happening {
    Sample(Box<Sample>, bool),
    Gone(String),
    Key(KeyEvent),
    Redraw,
    Signal(i32),
    /// Nobody types any more.
    InputEnded,
}

/// Shows the router until the user quits, the count is reached or a signal comes.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut app = App::new(options.panel.unwrap_or_default());
    let mut source = Source::new(&options.socket);
    // A router that cannot be reached is an error, one that goes later is waited for.
    let (sample, is_new) = source.sample(app.wanted())?;
    app.push(sample, is_new);
    let look = Look { set: Charset::of_environment(), colours: has_colours() };
    let (happen, happenings) = channel();
    watch_signals(happen.clone())?;
    let mut screen = Screen::open()?;
    read_keys(happen.clone())?;
    let wishes = ask(source, options.delay, app.wanted(), happen)?;
    follow((&mut app, &mut screen), look, (&happenings, &wishes), options.count)
}

/// <https://no-color.org>
fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn follow(
    (app, screen): (&mut App, &mut Screen),
    look: Look,
    (happenings, wishes): (&Receiver<Happening>, &Sender<Wanted>),
    count: Option<u64>,
) -> Result<ExitCode> {
    let (mut samples, mut wanted) = (1, app.wanted());
    loop {
        screen.draw(app, look)?;
        if count.is_some_and(|count| samples > count) {
            return Ok(ExitCode::SUCCESS);
        }
        // All that has come is drawn together.
        let first = happenings.recv()?;
        for happening in std::iter::once(first).chain(happenings.try_iter()) {
            match happening {
                Happening::Sample(sample, is_new) => {
                    app.push(*sample, is_new);
                    samples += 1;
                }
                Happening::Gone(reason) => app.lose(reason),
                Happening::Redraw => {}
                Happening::InputEnded => return Ok(ExitCode::SUCCESS),
                Happening::Signal(SIGCONT) => screen.take()?,
                Happening::Signal(signal) => return Ok(ExitCode::from(128 + signal as u8)),
                Happening::Key(key) => match app.press(key) {
                    Then::Draw => {}
                    Then::Quit => return Ok(ExitCode::SUCCESS),
                    Then::Suspend => {
                        screen.give_back();
                        low_level::raise(SIGSTOP)?;
                    }
                },
            }
        }
        if app.wanted() != wanted {
            wanted = app.wanted();
            // Without the thread that asks there would have been a panic.
            let _ = wishes.send(wanted);
        }
    }
}

fn watch_signals(happen: Sender<Happening>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCONT])?;
    spawn("signals", move || {
        // The loop may have ended.
        signals.forever().all(|signal| happen.send(Happening::Signal(signal)).is_ok());
    })
}

fn read_keys(happen: Sender<Happening>) -> Result<()> {
    let keys = move || {
        loop {
            let happening = match event::read() {
                Ok(Event::Key(key)) => Happening::Key(key),
                Ok(_) => Happening::Redraw,
                Err(_) => Happening::InputEnded,
            };
            let is_end = matches!(happening, Happening::InputEnded);
            if happen.send(happening).is_err() || is_end {
                return;
            }
        }
    };
    spawn("keys", keys)
}

/// Asks the router from now on; returns the place for other questions.
fn ask(
    mut source: Source,
    delay: Duration,
    mut wanted: Wanted,
    happen: Sender<Happening>,
) -> Result<Sender<Wanted>> {
    let (wish, wishes) = channel();
    let body = move || {
        let mut asked = Duration::ZERO;
        while let Ok(wished) = wait(&wishes, delay, asked) {
            wanted = wished.unwrap_or(wanted);
            let began = Instant::now();
            let happening = match source.sample(wanted) {
                Ok((sample, is_new)) => Happening::Sample(Box::new(sample), is_new),
                Err(error) => Happening::Gone(format!("{error:#}")),
            };
            asked = began.elapsed();
            if happen.send(happening).is_err() {
                return;
            }
        }
    };
    spawn("ask", body)?;
    Ok(wish)
}

/// Waits for the next sample; less if other questions are wished for, which are returned.
fn wait(
    wishes: &Receiver<Wanted>,
    delay: Duration,
    asked: Duration,
) -> Result<Option<Wanted>, RecvTimeoutError> {
    let began = Instant::now();
    let least = (LEAVE * asked).clamp(LEAST_PAUSE, MOST_PAUSE);
    let (mut pause, mut wished) = (delay.max(least), None);
    loop {
        match wishes.recv_timeout(pause.saturating_sub(began.elapsed())) {
            Ok(wanted) => {
                wished = Some(wanted);
                pause = least;
            }
            Err(RecvTimeoutError::Timeout) => return Ok(wished),
            Err(gone @ RecvTimeoutError::Disconnected) => return Err(gone),
        }
    }
}

/// Starts a thread that lives as long as the program.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(body)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_slow_router_is_asked_less_often() {
        let (wish, wishes) = channel();
        let began = Instant::now();
        assert_eq!(wait(&wishes, MS, 50 * MS), Ok(None));
        assert!(began.elapsed() >= 250 * MS);
        // A panel that is turned to is asked for before the delay is over, but not at once.
        let flows = Wanted { flows: true, ..Wanted::default() };
        wish.send(Wanted::default()).unwrap();
        wish.send(flows).unwrap();
        let began = Instant::now();
        assert_eq!(wait(&wishes, Duration::from_secs(3600), MS), Ok(Some(flows)));
        assert!(began.elapsed() >= LEAST_PAUSE);
        drop(wish);
        assert_eq!(wait(&wishes, MS, MS), Err(RecvTimeoutError::Disconnected));
    }
}
