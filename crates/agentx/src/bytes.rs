//! Fields of PDUs in either byte order (RFC 2741, 5.1 to 5.4).

use crate::Error;
use crate::oid::{Oid, PARTS_MOST};

/// The prefix that identifiers may leave out, with one sub-identifier behind it.
const INTERNET: [u32; 4] = [1, 3, 6, 1];

/// Reads fields one after another.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    is_big: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], is_big: bool) -> Self {
        Self { bytes, is_big }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (first, rest) = self.bytes.split_first_chunk::<N>().ok_or(Error::Cut)?;
        self.bytes = rest;
        Ok(*first)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Error> {
        self.take().map(|[byte]| byte)
    }

    pub(crate) fn half(&mut self) -> Result<u16, Error> {
        let bytes = self.take()?;
        Ok(if self.is_big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    pub(crate) fn word(&mut self) -> Result<u32, Error> {
        let bytes = self.take()?;
        Ok(if self.is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    pub(crate) fn long(&mut self) -> Result<u64, Error> {
        let bytes = self.take()?;
        Ok(if self.is_big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }

    pub(crate) fn octets(&mut self) -> Result<Vec<u8>, Error> {
        let len = self.word()? as usize;
        let padded = len.checked_next_multiple_of(4).ok_or(Error::Cut)?;
        let (octets, rest) = self.bytes.split_at_checked(padded).ok_or(Error::Cut)?;
        self.bytes = rest;
        Ok(octets[..len].to_vec())
    }

    /// Returns an identifier, and its flag `include`.
    pub(crate) fn oid(&mut self) -> Result<(Oid, bool), Error> {
        let [count, prefix, include, _] = self.take()?;
        let mut parts = Vec::new();
        if prefix != 0 {
            parts.extend(INTERNET);
            parts.push(prefix.into());
        }
        if usize::from(count) + parts.len() > PARTS_MOST {
            return Err(Error::Long(usize::from(count)));
        }
        for _ in 0..count {
            parts.push(self.word()?);
        }
        Ok((Oid::new(&parts), include != 0))
    }

    /// Reports bytes that are left.
    pub(crate) fn end(self) -> Result<(), Error> {
        if self.bytes.is_empty() { Ok(()) } else { Err(Error::Rest(self.bytes.len())) }
    }
}

/// Writes fields in network byte order.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn half(&mut self, half: u16) {
        self.0.extend(half.to_be_bytes());
    }

    pub(crate) fn word(&mut self, word: u32) {
        self.0.extend(word.to_be_bytes());
    }

    pub(crate) fn long(&mut self, long: u64) {
        self.0.extend(long.to_be_bytes());
    }

    pub(crate) fn octets(&mut self, octets: &[u8]) {
        self.word(octets.len() as u32);
        self.0.extend(octets);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Writes an identifier, in its short form where that exists.
    pub(crate) fn oid(&mut self, oid: &Oid, include: bool) {
        let (prefix, rest) = match oid.within(&INTERNET) {
            Some([prefix @ 1..=255, rest @ ..]) => (*prefix as u8, rest),
            _ => (0, oid.parts()),
        };
        self.0.extend([rest.len() as u8, prefix, include.into(), 0]);
        rest.iter().for_each(|part| self.word(*part));
    }
}
