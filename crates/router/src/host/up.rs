//! Up: frames for the kernel, several of a TCP connection at once.
//!
//! Consecutive segments in one round of the slow path are passed up as one large frame, by one
//! system call ([`wire::offload::coalesce`] has the rules). Nothing waits longer than the round. Frames
//! of a connection keep their order, and other packets stay behind all frames before
//! them.

use std::io::IoSlice;
use std::slice;

use dpdk::Mbuf;
use wire::offload::coalesce::{Run, TcpFrame};
use wire::offload::{NET_HEADER_LEN, NetHeader};
use zerocopy::IntoBytes;

/// Connections whose frames are collected at the same time.
const RUNS_MOST: usize = 8;

/// Frames that become one.
pub(super) const FRAMES_MOST: usize = 64;

/// Frames that are written together.
pub struct Batch<'a> {
    /// The virtio header and the frame's bytes.
    pub parts: &'a [IoSlice<'a>],
    /// Frames of the wire in it.
    pub packets: &'a [Mbuf],
    /// Bytes that these frames had.
    pub bytes: u64,
}

/// A run and its frames.
struct Open {
    run: Run,
    frames: Vec<Mbuf>,
}

/// The runs of one host interface, in the order in which they began.
#[derive(Default)]
pub struct Up {
    open: Vec<Open>,
    /// Emptied, for the next runs.
    spare: Vec<Vec<Mbuf>>,
}

impl Up {
    /// Takes a frame for the kernel; runs that it completes are written.
    pub fn give(&mut self, packet: Mbuf, write: &mut impl FnMut(Batch<'_>)) {
        let frame = (packet.segments() == 1).then(|| TcpFrame::parse(packet.data())).flatten();
        let Some(frame) = frame else {
            self.flush(write);
            return write_one(&packet, write);
        };
        let place = self.open.iter().position(|open| open.run.is_flow_of(&frame));
        if let Some(place) = place {
            let open = &mut self.open[place];
            if open.run.join(&frame) {
                open.frames.push(packet);
                if open.run.has_ended() || open.frames.len() == FRAMES_MOST {
                    self.close(place, write);
                }
                return;
            }
            self.close(place, write);
        }
        match Run::begin(&frame) {
            Some(run) => self.begin(run, packet, write),
            None => write_one(&packet, write),
        }
    }

    fn begin(&mut self, run: Run, packet: Mbuf, write: &mut impl FnMut(Batch<'_>)) {
        if self.open.len() == RUNS_MOST {
            self.close(0, write);
        }
        let mut frames = self.spare.pop().unwrap_or_default();
        frames.push(packet);
        self.open.push(Open { run, frames });
    }

    /// Writes all that was collected.
    pub fn flush(&mut self, write: &mut impl FnMut(Batch<'_>)) {
        while !self.open.is_empty() {
            self.close(0, write);
        }
    }

    fn close(&mut self, place: usize, write: &mut impl FnMut(Batch<'_>)) {
        let Open { run, mut frames } = self.open.remove(place);
        match &frames[..] {
            [one] => write_one(one, write),
            several => write_run(&run, several, write),
        }
        frames.clear();
        self.spare.push(frames);
    }
}

/// Writes a frame as it is.
pub fn write_one(packet: &Mbuf, write: &mut impl FnMut(Batch<'_>)) {
    let header = [0; NET_HEADER_LEN];
    let parts = [header.as_slice()].into_iter().chain(packet.chunks());
    write_parts(parts, slice::from_ref(packet), packet.len(), write);
}

/// Writes the frames of a run as one.
fn write_run(run: &Run, frames: &[Mbuf], write: &mut impl FnMut(Batch<'_>)) {
    let (header, head): (NetHeader, _) = run.header();
    let headers = head.as_ref();
    // Headers of the same length are a condition for joining.
    let data = frames.iter().map(|frame| &frame.data()[headers.len()..]);
    let bytes = frames.iter().map(Mbuf::len).sum();
    let parts = [header.as_bytes(), headers].into_iter().chain(data);
    write_parts(parts, frames, bytes, write);
}

fn write_parts<'a>(
    parts: impl Iterator<Item = &'a [u8]>,
    packets: &'a [Mbuf],
    bytes: usize,
    write: &mut impl FnMut(Batch<'_>),
) {
    let mut slices = [IoSlice::new(&[]); FRAMES_MOST + 2];
    let mut used = 0;
    for (slice, part) in slices.iter_mut().zip(parts) {
        *slice = IoSlice::new(part);
        used += 1;
    }
    write(Batch { parts: &slices[..used], packets, bytes: bytes as u64 });
}
