//! A capture's connection: its packets, until the client closes its direction or is gone.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::Answer;
use api::capture::{CaptureRequest, Line, Packet, Totals};
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
    /// The names of interfaces by number.
    pub names: BTreeMap<usize, String>,
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
    let totals = Totals { packets: passed?, lost: capture.capture.lost() };
    write_answer(write, &Answer::Ok(serde_json::to_value(totals)?)).await
}

/// Passes packets on until the client closes its direction, and then those that are there. Returns their number.
async fn pass_on(
    (read, write): (&mut (impl AsyncRead + Unpin), &mut (impl AsyncWrite + Unpin)),
    begun: &Begun,
) -> io::Result<u64> {
    let clock = Clock::now();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut packets, mut ended, mut ignored) = (0, false, [0; 64]);
    let mut is_full = false;
    while !ended {
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
        serde_json::to_writer(&mut text, &Line::Packet(packet(&record, &begun.names, clock)))?;
        text.push(b'\n');
        begun.capture.give_back(record);
        count += 1;
    }
    Ok((text, count))
}

/// Describes a packet.
pub fn packet(record: &Record, names: &BTreeMap<usize, String>, clock: &Clock) -> Packet {
    let number = usize::from(record.interface);
    let (event, reason) = match record.event {
        Event::Received => ("received", None),
        Event::Sent => ("sent", None),
        Event::Entered => ("entered", None),
        Event::Dropped(reason) => ("dropped", Some(reason.name())),
        Event::Punted(reason) => ("punted", Some(reason.name())),
    };
    Packet {
        time_ns: clock.nanoseconds(record.at),
        interface: names.get(&number).cloned().unwrap_or_else(|| format!("interface {number}")),
        event: event.to_owned(),
        reason: reason.map(str::to_owned),
        step: record.step().to_owned(),
        length: record.length,
        frame: record.frame.to_vec(),
    }
}

/// The time of day at a count of TSC cycles.
pub struct Clock {
    tsc: u64,
    since: Duration,
}

impl Clock {
    /// Returns a clock that was set now.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { tsc: dpdk::tsc(), since }
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
