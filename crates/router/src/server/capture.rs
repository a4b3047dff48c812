//! A capture's connection: its packets, until the client closes its direction or is gone.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Answer;
use api::capture::{CaptureRequest, Line, Packet, Totals};
use arc_swap::ArcSwap;
use dataplane::capture::{Capture, Event, Record};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use super::{Question, Refusal, write_answer};

/// Interval in which packets are passed on.
pub const TICK: Duration = Duration::from_millis(10);

/// Bytes that are written at once, about.
pub const CHUNK: usize = 256 << 10;

/// A capture that has begun.
pub struct Begun {
    /// Its packets.
    pub capture: Arc<Capture>,
    /// Messages of the owner about it.
    pub course: Arc<Course>,
}

/// Messages of the owner about a capture that runs.
#[derive(Default)]
pub struct Course {
    /// The names of interfaces by number, which a change of the configuration gives to others.
    names: ArcSwap<BTreeMap<usize, String>>,
    /// The reason of an end that the client has not asked for.
    ended: OnceLock<String>,
}

impl Course {
    /// Sets the names of interfaces by number.
    pub fn set_names(&self, names: BTreeMap<usize, String>) {
        self.names.store(Arc::new(names));
    }

    /// Ends the capture for this reason.
    pub fn end(&self, reason: String) {
        // An earlier reason stays.
        let _ = self.ended.set(reason);
    }

    /// The reason of its end, if the router has ended it.
    pub fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    fn name(&self, number: usize) -> String {
        let names = self.names.load();
        names.get(&number).cloned().unwrap_or_else(|| format!("interface {number}"))
    }
}

/// Asks for a capture, which [`Question::EndCapture`] ends.
///
/// # Errors
/// The router refuses it, or ends.
pub async fn begin(
    request: CaptureRequest,
    questions: &mpsc::Sender<Question>,
) -> Result<Begun, Refusal> {
    let (to, wait) = oneshot::channel();
    questions.send(Question::Capture(request, to)).await.map_err(|_| Refusal::Ending)?;
    wait.await.map_err(|_| Refusal::Ending)?.map_err(Refusal::Because)
}

/// The answer to a client that asked for a capture.
pub fn answer(made: &Result<Begun, Refusal>) -> Answer {
    match made {
        Ok(_) => Answer::Ok(serde_json::json!({ "capture": "begun" })),
        Err(refusal) => refusal.clone().into(),
    }
}

/// Asks for a capture and passes its packets on; returns the answer for the audit log.
pub async fn serve(
    (read, write): (&mut (impl AsyncRead + Unpin), &mut (impl AsyncWrite + Unpin)),
    request: CaptureRequest,
    questions: &mpsc::Sender<Question>,
    begun: impl FnOnce(&Answer),
) -> io::Result<()> {
    let made = begin(request, questions).await;
    let answer = answer(&made);
    begun(&answer);
    let written = write_answer(write, &answer).await;
    let Ok(capture) = made else { return written };
    let passed = match written {
        Ok(()) => pass_on((read, write), &capture).await,
        Err(error) => Err(error),
    };
    // The owner may have ended.
    let _ = questions.send(Question::EndCapture(capture.capture.clone())).await;
    let (lost, ended) = (capture.capture.lost(), capture.course.ended().map(str::to_owned));
    let totals = Totals { packets: passed?, lost, ended };
    write_answer(write, &Answer::Ok(serde_json::to_value(totals)?)).await
}

/// Passes packets on until the client closes its direction, and then those that are there. Returns their number.
async fn pass_on(
    (read, write): (&mut (impl AsyncRead + Unpin), &mut (impl AsyncWrite + Unpin)),
    begun: &Begun,
) -> io::Result<u64> {
    let mut clock = Clock::now();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut packets, mut ended, mut ignored) = (0, false, [0; 64]);
    let mut is_full = false;
    while !ended && begun.course.ended().is_none() {
        clock.renew();
        tokio::select! {
            biased;
            got = read.read(&mut ignored) => ended = !matches!(got, Ok(1..)),
            () = std::future::ready(()), if is_full => {}
            _ = ticks.tick() => {}
        }
        let (text, count) = lines(begun, &clock)?;
        write.write_all(&text).await?;
        packets += count;
        is_full = text.len() >= CHUNK;
    }
    // Those that are there at the end: forwarders go on until they lose the capture.
    let mut waiting = begun.capture.waiting() as u64;
    while waiting > 0 {
        let (text, count) = lines(begun, &clock)?;
        write.write_all(&text).await?;
        packets += count;
        waiting = waiting.saturating_sub(count.max(1));
    }
    Ok(packets)
}

/// Some packets as lines, and their number.
fn lines(begun: &Begun, clock: &Clock) -> io::Result<(Vec<u8>, u64)> {
    let (mut text, mut count) = (Vec::new(), 0);
    while text.len() < CHUNK
        && let Some(record) = begun.capture.take()
    {
        serde_json::to_writer(&mut text, &Line::Packet(packet(&record, &begun.course, clock)))?;
        text.push(b'\n');
        begun.capture.give_back(record);
        count += 1;
    }
    Ok((text, count))
}

/// Describes a packet.
pub fn packet(record: &Record, course: &Course, clock: &Clock) -> Packet {
    let (event, reason) = match record.event {
        Event::Received => ("received", None),
        Event::Sent => ("sent", None),
        Event::Entered => ("entered", None),
        Event::Dropped(reason) => ("dropped", Some(reason.name())),
        Event::Punted(reason) => ("punted", Some(reason.name())),
    };
    Packet {
        time_ns: clock.nanoseconds(record.at),
        interface: course.name(record.interface.into()),
        event: event.to_owned(),
        reason: reason.map(str::to_owned),
        step: record.step().to_owned(),
        is_outbound: record.is_outbound,
        length: record.length,
        frame: record.frame.to_vec(),
    }
}

/// The time of day at a count of TSC cycles.
pub struct Clock {
    tsc: u64,
    since: Duration,
    set: Instant,
}

impl Clock {
    /// Returns a clock that was set now.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { tsc: dpdk::tsc(), since, set: Instant::now() }
    }

    /// Sets the clock again if that was a second ago: the machine's may have been set, and the rate of the TSC is an estimate.
    pub fn renew(&mut self) {
        if self.set.elapsed() >= Duration::from_secs(1) {
            *self = Self::now();
        }
    }

    /// Returns the time now, in nanoseconds since 1970.
    pub fn now_ns(&self) -> u64 {
        self.nanoseconds(dpdk::tsc())
    }

    fn nanoseconds(&self, at: u64) -> u64 {
        let cycles = i128::from(at) - i128::from(self.tsc);
        let beside = cycles * 1_000_000_000 / i128::from(dpdk::tsc_hz().max(1));
        (self.since.as_nanos() as i128 + beside) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_set_again_after_a_second() {
        let mut clock = Clock { since: Duration::from_secs(7), ..Clock::now() };
        clock.set += Duration::from_secs(60);
        clock.renew();
        assert_eq!(clock.since, Duration::from_secs(7));
        clock.set -= Duration::from_secs(61);
        clock.renew();
        assert!(clock.since > Duration::from_secs(7));
    }
}
