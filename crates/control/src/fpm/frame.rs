//! The frames of the FPM protocol: `fpm/fpm.h` of FRR.
//!
//! ```text
//!    0        1        2                 4
//!   +--------+--------+-----------------+------------------
//!   | version| type   | length, header  | netlink messages
//!   | 1      | 1      | included        |
//!   +--------+--------+-----------------+------------------
//! ```

/// Bytes of a frame's header.
pub(super) const HEADER: usize = 4;

const VERSION: u8 = 1;
const NETLINK: u8 = 1;
const PROTOBUF: u8 = 2;

/// Reason why the rest of a stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("frame of version {0}, not 1")]
    Version(u8),
    #[error("frame of protobuf messages; load zebra's module dplane_fpm_nl, not fpm:protobuf")]
    Protobuf,
    #[error("frame of type {0}, not 1 (netlink)")]
    Type(u8),
    #[error("frame of {0} bytes, less than its header")]
    Length(u16),
}

/// A stream of bytes, cut into frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    begin: usize,
}

impl Frames {
    /// Appends received bytes.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        // Bytes already read are dropped before new ones are appended, so the buffer stays small.
        self.bytes.drain(..std::mem::take(&mut self.begin));
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns true if an incomplete frame has been received.
    pub(super) fn in_the_middle(&self) -> bool {
        self.begin < self.bytes.len()
    }

    /// Returns the messages of the next complete frame.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, Broken> {
        let Some(&[version, kind, high, low]) = self.bytes[self.begin..].first_chunk() else {
            return Ok(None);
        };
        match (version, kind) {
            (VERSION, NETLINK) => {}
            (VERSION, PROTOBUF) => return Err(Broken::Protobuf),
            (VERSION, other) => return Err(Broken::Type(other)),
            (other, _) => return Err(Broken::Version(other)),
        }
        let length = u16::from_be_bytes([high, low]);
        if usize::from(length) < HEADER {
            return Err(Broken::Length(length));
        }
        let (begin, end) = (self.begin + HEADER, self.begin + usize::from(length));
        if end > self.bytes.len() {
            return Ok(None);
        }
        self.begin = end;
        Ok(Some(&self.bytes[begin..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames do not depend on how the stream is cut into reads.
    #[test]
    fn partial_reads_make_whole_frames() {
        let stream = [1, 1, 0, 7, 10, 11, 12, 1, 1, 0, 4, 1, 1, 0, 5, 13];
        for cut in 1..stream.len() {
            let mut frames = Frames::default();
            let mut found = Vec::new();
            for piece in stream.chunks(cut) {
                frames.extend(piece);
                while let Some(frame) = frames.next().unwrap() {
                    found.push(frame.to_vec());
                }
            }
            assert_eq!(found, [vec![10, 11, 12], vec![], vec![13]], "pieces of {cut}");
            assert!(!frames.in_the_middle());
            frames.extend(&[1, 1, 0]);
            assert!(frames.next().unwrap().is_none() && frames.in_the_middle());
        }
    }

    #[test]
    fn what_is_no_frame_breaks_the_stream() {
        for (bytes, expected) in [
            ([2, 1, 0, 8], Broken::Version(2)),
            ([1, 2, 0, 8], Broken::Protobuf),
            ([1, 7, 0, 8], Broken::Type(7)),
            ([1, 1, 0, 3], Broken::Length(3)),
        ] {
            let mut frames = Frames::default();
            frames.extend(&bytes);
            assert_eq!(frames.next(), Err(expected));
        }
    }
}
