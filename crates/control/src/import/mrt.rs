//! MRT `TABLE_DUMP_V2` records (RFC 6396 section 4.3, with paths added by RFC 8050).
//!
//! ```text
//! header   timestamp 4 | type 2 | subtype 2 | length 4
//! record   sequence 4 | prefix length 1 | prefix 0..16 | entries 2 | entry…
//! entry    peer 2 | time 4 | [path id 4] | attributes' length 2 | attribute…
//! ```
//!
//! Own code instead of a library's, because only one number is needed from the attributes of all
//! paths: the origin AS of the first path that has one. Parsing everything takes ten times as long.
//! Every access is checked; a record with a wrong length is refused.

use std::io::{self, BufRead, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::Collector;

/// Limit of a record's length. No record of a table dump is longer; a longer one has a damaged
/// header.
const RECORD_MOST: usize = 64 << 20;

const TABLE_DUMP_V2: u16 = 13;
const PEER_INDEX_TABLE: u16 = 1;
const RIB_IPV4_UNICAST: u16 = 2;
const RIB_IPV6_UNICAST: u16 = 4;
const RIB_IPV4_UNICAST_ADDPATH: u16 = 8;
const RIB_IPV6_UNICAST_ADDPATH: u16 = 10;

const HEADER: usize = 12;

/// The attribute AS_PATH and its segments (RFC 4271 4.3).
const AS_PATH: u8 = 2;
const AS_SET: u8 = 1;
const AS_SEQUENCE: u8 = 2;
const EXTENDED_LENGTH: u8 = 0x10;

/// Returns true if a file begins with an MRT header. Its type is a small number, so the fifth byte
/// is zero, which never occurs in a text.
pub(super) fn looks_like(head: &[u8]) -> bool {
    head.len() >= HEADER && head[4] == 0 && (10..=64).contains(&head[5])
}

/// Reads records to the end.
pub(super) fn read(reader: &mut impl BufRead, collector: &mut Collector<'_>) -> io::Result<()> {
    let mut body = Vec::new();
    let mut place = 0;
    while !reader.fill_buf()?.is_empty() {
        place += 1;
        let mut header = [0; HEADER];
        reader.read_exact(&mut header)?;
        let mut fields = Bytes(&header[4..]);
        let (kind, subtype) = (fields.u16().unwrap_or(0), fields.u16().unwrap_or(0));
        let length = fields.u32().unwrap_or(0) as usize;
        if length > RECORD_MOST {
            let message =
                format!("record {place} claims {length} bytes, {RECORD_MOST} is the most");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        body.clear();
        // The buffer grows as bytes arrive, so a wrong length in a header costs no memory.
        let read = reader.by_ref().take(length as u64).read_to_end(&mut body)?;
        if read < length {
            let message = format!("record {place} ends after {read} of {length} bytes");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        record(place, kind, subtype, &body, collector);
    }
    Ok(())
}

fn record(place: u64, kind: u16, subtype: u16, body: &[u8], collector: &mut Collector<'_>) {
    if kind != TABLE_DUMP_V2 {
        collector.refuse(place, format!("MRT type {kind}; only TABLE_DUMP_V2 (13) is read"));
        return;
    }
    let added_paths = matches!(subtype, RIB_IPV4_UNICAST_ADDPATH | RIB_IPV6_UNICAST_ADDPATH);
    let parsed = match subtype {
        PEER_INDEX_TABLE => return,
        RIB_IPV4_UNICAST | RIB_IPV4_UNICAST_ADDPATH => route::<4>(body, added_paths),
        RIB_IPV6_UNICAST | RIB_IPV6_UNICAST_ADDPATH => route::<16>(body, added_paths),
        other => Err(format!("TABLE_DUMP_V2 subtype {other}; only unicast tables are read")),
    };
    match parsed {
        Ok((prefix, origin)) => collector.take(place, prefix, origin),
        Err(reason) => collector.refuse(place, reason),
    }
}

/// Returns the prefix and origin of a RIB record whose addresses have `N` bytes.
fn route<const N: usize>(body: &[u8], added_paths: bool) -> Result<(IpNet, u32), String> {
    let mut fields = Bytes(body);
    let short = || format!("a record of {} bytes is too short for what it says", body.len());
    fields.u32().ok_or_else(short)?;
    let length = fields.u8().ok_or_else(short)?;
    if usize::from(length) > N * 8 {
        return Err(format!("prefix length {length}, {} is the most", N * 8));
    }
    let given = fields.take(usize::from(length).div_ceil(8)).ok_or_else(short)?;
    let mut octets = [0; N];
    octets[..given.len()].copy_from_slice(given);
    let prefix = IpNet::new(address(&octets), length).map_err(|_| short())?;
    let entries = fields.u16().ok_or_else(short)?;
    for _ in 0..entries {
        fields.take(if added_paths { 10 } else { 6 }).ok_or_else(short)?;
        let length = fields.u16().ok_or_else(short)?;
        let attributes = fields.take(usize::from(length)).ok_or_else(short)?;
        if let Some(origin) = origin(Bytes(attributes)) {
            // Bits of the last octet after the prefix have no meaning (RFC 4271 4.3).
            return Ok((prefix.trunc(), origin));
        }
    }
    Err(format!("{}: none of {entries} paths has an origin AS", prefix.trunc()))
}

fn address(octets: &[u8]) -> IpAddr {
    match <[u8; 4]>::try_from(octets) {
        Ok(v4) => Ipv4Addr::from(v4).into(),
        Err(_) => {
            let mut v6 = [0; 16];
            v6[..octets.len()].copy_from_slice(octets);
            Ipv6Addr::from(v6).into()
        }
    }
}

/// Returns the last AS of the path in these attributes.
fn origin(mut attributes: Bytes<'_>) -> Option<u32> {
    loop {
        let (flags, code) = (attributes.u8()?, attributes.u8()?);
        let length =
            if flags & EXTENDED_LENGTH != 0 { attributes.u16()? } else { attributes.u8()?.into() };
        let value = attributes.take(length.into())?;
        if code == AS_PATH {
            return path_origin(Bytes(value));
        }
    }
}

/// Returns the origin of a path of 4-byte AS numbers. Of an aggregate's AS_SET the first is used;
/// confederation segments are ignored.
fn path_origin(mut path: Bytes<'_>) -> Option<u32> {
    let mut origin = None;
    while let Some(kind) = path.u8() {
        let count = usize::from(path.u8()?);
        let numbers = path.take(count * 4)?;
        let chosen = match kind {
            AS_SEQUENCE => numbers.rchunks_exact(4).next(),
            AS_SET => numbers.chunks_exact(4).next(),
            _ => None,
        };
        origin = chosen.and_then(|number| Bytes(number).u32()).or(origin);
    }
    origin
}

/// Bytes taken from the front; `None` when too few are left.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }
}
