//! PDUs (RFC 2741, 6).

use std::net::Ipv4Addr;

use crate::bytes::{Reader, Writer};
use crate::{Error, Oid};

/// Bytes of a header.
pub const HEADER: usize = 20;

/// Most bytes of a payload that is read; those of a master are far shorter.
pub const PAYLOAD_MOST: usize = 1 << 18;

const VERSION: u8 = 1;

/// Flags of headers.
const NON_DEFAULT_CONTEXT: u8 = 0x08;
const NETWORK_BYTE_ORDER: u8 = 0x10;

/// Types of PDUs.
const OPEN: u8 = 1;
const CLOSE: u8 = 2;
const REGISTER: u8 = 3;
const GET: u8 = 5;
const GET_NEXT: u8 = 6;
const GET_BULK: u8 = 7;
const TEST_SET: u8 = 8;
const COMMIT_SET: u8 = 9;
const UNDO_SET: u8 = 10;
const CLEANUP_SET: u8 = 11;
const PING: u8 = 13;
const RESPONSE: u8 = 18;

/// The fields in front of every PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: u8,
    flags: u8,
    /// The session.
    pub session: u32,
    /// The transaction.
    pub transaction: u32,
    /// The packet; an answer has that of its question.
    pub packet: u32,
    /// Bytes of the payload, at most [`PAYLOAD_MOST`].
    pub len: usize,
}

impl Header {
    /// Reads it.
    ///
    /// # Errors
    /// Its version is another, or its payload is too long.
    pub fn read(bytes: &[u8; HEADER]) -> Result<Self, Error> {
        let [version, kind, flags, ..] = *bytes;
        if version != VERSION {
            return Err(Error::Version(version));
        }
        let mut reader = Reader::new(&bytes[4..], flags & NETWORK_BYTE_ORDER != 0);
        let (session, transaction) = (reader.word()?, reader.word()?);
        let (packet, len) = (reader.word()?, reader.word()? as usize);
        if len > PAYLOAD_MOST {
            return Err(Error::Long(len));
        }
        Ok(Self { kind, flags, session, transaction, packet, len })
    }
}

/// The beginning and the end of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first identifier, or the one before it.
    pub start: Oid,
    /// True if the first may be [`Self::start`] itself.
    pub include: bool,
    /// The identifier that the search does not reach; null: none.
    pub end: Oid,
}

/// The value of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of RFC 2741, 5.4")]
pub enum Value {
    Integer(i32),
    OctetString(Vec<u8>),
    Null,
    ObjectIdentifier(Oid),
    IpAddress(Ipv4Addr),
    Counter32(u32),
    Gauge32(u32),
    TimeTicks(u32),
    Opaque(Vec<u8>),
    Counter64(u64),
    NoSuchObject,
    NoSuchInstance,
    EndOfMibView,
}

impl Value {
    fn kind(&self) -> u16 {
        match self {
            Self::Integer(_) => 2,
            Self::OctetString(_) => 4,
            Self::Null => 5,
            Self::ObjectIdentifier(_) => 6,
            Self::IpAddress(_) => 64,
            Self::Counter32(_) => 65,
            Self::Gauge32(_) => 66,
            Self::TimeTicks(_) => 67,
            Self::Opaque(_) => 68,
            Self::Counter64(_) => 70,
            Self::NoSuchObject => 128,
            Self::NoSuchInstance => 129,
            Self::EndOfMibView => 130,
        }
    }
}

/// An object and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VarBind {
    /// The object's identifier.
    pub name: Oid,
    /// Its value.
    pub value: Value,
}

impl VarBind {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let (kind, _) = (reader.half()?, reader.half()?);
        let (name, _) = reader.oid()?;
        let value = match kind {
            2 => Value::Integer(reader.word()? as i32),
            4 => Value::OctetString(reader.octets()?),
            5 => Value::Null,
            6 => Value::ObjectIdentifier(reader.oid()?.0),
            64 => {
                let octets = reader.octets()?;
                let octets: [u8; 4] = octets.try_into().map_err(|_| Error::ValueType(kind))?;
                Value::IpAddress(octets.into())
            }
            65 => Value::Counter32(reader.word()?),
            66 => Value::Gauge32(reader.word()?),
            67 => Value::TimeTicks(reader.word()?),
            68 => Value::Opaque(reader.octets()?),
            70 => Value::Counter64(reader.long()?),
            128 => Value::NoSuchObject,
            129 => Value::NoSuchInstance,
            130 => Value::EndOfMibView,
            other => return Err(Error::ValueType(other)),
        };
        Ok(Self { name, value })
    }

    fn write(&self, writer: &mut Writer) {
        writer.half(self.value.kind());
        writer.half(0);
        writer.oid(&self.name, false);
        match &self.value {
            Value::Integer(number) => writer.word(*number as u32),
            Value::OctetString(octets) | Value::Opaque(octets) => writer.octets(octets),
            Value::ObjectIdentifier(oid) => writer.oid(oid, false),
            Value::IpAddress(address) => writer.octets(&address.octets()),
            Value::Counter32(n) | Value::Gauge32(n) | Value::TimeTicks(n) => writer.word(*n),
            Value::Counter64(number) => writer.long(*number),
            Value::Null | Value::NoSuchObject | Value::NoSuchInstance | Value::EndOfMibView => {}
        }
    }
}

/// A PDU that a subagent sends or receives, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// Opens a session: seconds for an answer, and the subagent's description.
    Open(u8, String),
    /// Ends a session, for this reason.
    Close(u8),
    /// Registers a subtree with this priority: the least number counts most.
    Register(u8, Oid),
    /// Asks for these objects.
    Get(Vec<Oid>),
    /// Asks for the objects behind these.
    GetNext(Vec<Range>),
    /// The same, for the ranges from a number on several times: number, times, ranges.
    GetBulk(u16, u16, Vec<Range>),
    /// Asks if objects may be set; the number of them.
    TestSet(usize),
    /// Sets objects that were asked about.
    CommitSet,
    /// Undoes that.
    UndoSet,
    /// Ends it.
    CleanupSet,
    /// Asks for a sign of life.
    Ping,
    /// An answer: error, the place of the object that it is about, objects.
    Response(u16, u16, Vec<VarBind>),
}

impl Pdu {
    /// Reads the payload behind a header.
    ///
    /// # Errors
    /// It is no PDU that a master sends, or damaged.
    pub fn read(header: &Header, payload: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(payload, header.flags & NETWORK_BYTE_ORDER != 0);
        if header.flags & NON_DEFAULT_CONTEXT != 0 {
            reader.octets()?;
        }
        let pdu = match header.kind {
            CLOSE => {
                let reason = reader.byte()?;
                for _ in 0..3 {
                    reader.byte()?;
                }
                Self::Close(reason)
            }
            GET => Self::Get(ranges(&mut reader)?.into_iter().map(|range| range.start).collect()),
            GET_NEXT => Self::GetNext(ranges(&mut reader)?),
            GET_BULK => Self::GetBulk(reader.half()?, reader.half()?, ranges(&mut reader)?),
            TEST_SET => Self::TestSet(bindings(&mut reader)?.len()),
            COMMIT_SET => Self::CommitSet,
            UNDO_SET => Self::UndoSet,
            CLEANUP_SET => Self::CleanupSet,
            PING => Self::Ping,
            RESPONSE => {
                let _uptime = reader.word()?;
                Self::Response(reader.half()?, reader.half()?, bindings(&mut reader)?)
            }
            other => return Err(Error::Type(other)),
        };
        reader.end()?;
        Ok(pdu)
    }

    /// Returns the bytes of a PDU with its header.
    pub fn write(&self, session: u32, transaction: u32, packet: u32) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.0.extend([VERSION, self.kind(), NETWORK_BYTE_ORDER, 0]);
        [session, transaction, packet, 0].into_iter().for_each(|word| writer.word(word));
        self.write_payload(&mut writer);
        let Writer(mut bytes) = writer;
        let len = (bytes.len() - HEADER) as u32;
        bytes[HEADER - 4..HEADER].copy_from_slice(&len.to_be_bytes());
        bytes
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Open(..) => OPEN,
            Self::Close(_) => CLOSE,
            Self::Register(..) => REGISTER,
            Self::Get(_) => GET,
            Self::GetNext(_) => GET_NEXT,
            Self::GetBulk(..) => GET_BULK,
            Self::TestSet(_) => TEST_SET,
            Self::CommitSet => COMMIT_SET,
            Self::UndoSet => UNDO_SET,
            Self::CleanupSet => CLEANUP_SET,
            Self::Ping => PING,
            Self::Response(..) => RESPONSE,
        }
    }

    fn write_payload(&self, writer: &mut Writer) {
        match self {
            Self::Open(timeout, description) => {
                writer.0.extend([*timeout, 0, 0, 0]);
                writer.oid(&Oid::default(), false);
                writer.octets(description.as_bytes());
            }
            Self::Close(reason) => writer.0.extend([*reason, 0, 0, 0]),
            Self::Register(priority, subtree) => {
                writer.0.extend([0, *priority, 0, 0]);
                writer.oid(subtree, false);
            }
            Self::Get(names) => {
                for name in names {
                    writer.oid(name, false);
                    writer.oid(&Oid::default(), false);
                }
            }
            Self::GetNext(ranges) => ranges.iter().for_each(|range| range.write(writer)),
            Self::GetBulk(singles, repetitions, ranges) => {
                writer.half(*singles);
                writer.half(*repetitions);
                ranges.iter().for_each(|range| range.write(writer));
            }
            Self::TestSet(count) => {
                let binding = VarBind { name: Oid::default(), value: Value::Null };
                (0..*count).for_each(|_| binding.write(writer));
            }
            Self::Response(error, index, bindings) => {
                writer.word(0);
                writer.half(*error);
                writer.half(*index);
                bindings.iter().for_each(|binding| binding.write(writer));
            }
            Self::CommitSet | Self::UndoSet | Self::CleanupSet | Self::Ping => {}
        }
    }
}

impl Range {
    fn write(&self, writer: &mut Writer) {
        writer.oid(&self.start, self.include);
        writer.oid(&self.end, false);
    }
}

fn ranges(reader: &mut Reader<'_>) -> Result<Vec<Range>, Error> {
    let mut ranges = Vec::new();
    while !reader.is_empty() {
        let (start, include) = reader.oid()?;
        let (end, _) = reader.oid()?;
        ranges.push(Range { start, include, end });
    }
    Ok(ranges)
}

fn bindings(reader: &mut Reader<'_>) -> Result<Vec<VarBind>, Error> {
    let mut bindings = Vec::new();
    while !reader.is_empty() {
        bindings.push(VarBind::read(reader)?);
    }
    Ok(bindings)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<(Header, Pdu), Error> {
        let header = Header::read(bytes.first_chunk().ok_or(Error::Cut)?)?;
        Ok((header, Pdu::read(&header, &bytes[HEADER..])?))
    }

    /// RFC 2741, 5.1: below internet they begin with a prefix.
    #[test]
    fn identifiers_have_their_short_form() {
        let range = Range {
            start: Oid::new(&[1, 3, 6, 1, 2, 1, 1, 1]),
            include: false,
            end: Oid::new(&[1, 3, 6, 2, 9]),
        };
        let bytes = Pdu::GetNext(vec![range]).write(1, 2, 3);
        let expected = [
            &[1, 6, 0x10, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 40][..],
            &[3, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1],
            &[5, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 9],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn a_master_may_have_the_other_byte_order_and_a_context() {
        let mut bytes = vec![1, 5, 0x08, 0];
        for word in [7u32, 8, 9, 20] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(b"vrf\0");
        bytes.extend([1, 2, 0, 0, 5, 0, 0, 0]);
        bytes.extend([0; 4]);
        let (header, pdu) = read(&bytes).unwrap();
        assert_eq!((header.session, header.transaction, header.packet), (7, 8, 9));
        assert_eq!(pdu, Pdu::Get(vec![Oid::new(&[1, 3, 6, 1, 2, 5])]));
    }

    #[test]
    fn damaged_pdus_are_errors() {
        let ping = Pdu::Ping.write(1, 2, 3);
        let with = |at: usize, byte: u8| {
            let mut bytes = ping.clone();
            bytes[at] = byte;
            read(&bytes).unwrap_err()
        };
        assert_eq!(with(0, 2), Error::Version(2));
        assert_eq!(with(1, 99), Error::Type(99));
        assert_eq!(with(16, 1), Error::Long(1 << 24));
        let rest = [&ping[..], &[0; 4]].concat();
        assert_eq!(read(&rest), Err(Error::Rest(4)));
        assert_eq!(Error::Long(1 << 20).to_string(), "1048576 bytes; 262144 is the most");
    }

    fn oid() -> impl Strategy<Value = Oid> {
        let parts = prop::collection::vec(any::<u32>(), 0..100);
        (any::<bool>(), parts).prop_map(|(is_internet, parts)| {
            let internet: &[u32] = if is_internet { &[1, 3, 6, 1, 2] } else { &[] };
            Oid::new(internet).with(&parts)
        })
    }

    fn value() -> impl Strategy<Value = Value> {
        let octets = || prop::collection::vec(any::<u8>(), 0..40);
        prop_oneof![
            any::<i32>().prop_map(Value::Integer),
            octets().prop_map(Value::OctetString),
            Just(Value::Null),
            oid().prop_map(Value::ObjectIdentifier),
            any::<u32>().prop_map(|bits| Value::IpAddress(bits.into())),
            any::<u32>().prop_map(Value::Counter32),
            any::<u32>().prop_map(Value::Gauge32),
            any::<u32>().prop_map(Value::TimeTicks),
            octets().prop_map(Value::Opaque),
            any::<u64>().prop_map(Value::Counter64),
            Just(Value::NoSuchObject),
            Just(Value::NoSuchInstance),
            Just(Value::EndOfMibView),
        ]
    }

    fn pdu() -> impl Strategy<Value = Pdu> {
        let range = || {
            (oid(), any::<bool>(), oid()).prop_map(|(start, include, end)| Range {
                start,
                include,
                end,
            })
        };
        let ranges = move || prop::collection::vec(range(), 0..5);
        let binding = (oid(), value()).prop_map(|(name, value)| VarBind { name, value });
        prop_oneof![
            any::<u8>().prop_map(Pdu::Close),
            prop::collection::vec(oid(), 0..5).prop_map(Pdu::Get),
            ranges().prop_map(Pdu::GetNext),
            (any::<u16>(), any::<u16>(), ranges()).prop_map(|(a, b, c)| Pdu::GetBulk(a, b, c)),
            (0..4usize).prop_map(Pdu::TestSet),
            prop::sample::select(vec![Pdu::CommitSet, Pdu::UndoSet, Pdu::CleanupSet, Pdu::Ping]),
            (any::<u16>(), any::<u16>(), prop::collection::vec(binding, 0..5))
                .prop_map(|(a, b, c)| Pdu::Response(a, b, c)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(pdu in pdu(), [session, transaction, packet] in any::<[u32; 3]>()) {
            let bytes = pdu.write(session, transaction, packet);
            let (header, found) = read(&bytes).unwrap();
            prop_assert_eq!(found, pdu);
            prop_assert_eq!((header.session, header.transaction, header.packet), (session, transaction, packet));
            prop_assert_eq!(header.len, bytes.len() - HEADER);
        }

        #[test]
        fn cut_pdus_are_errors_or_shorter_ones(pdu in pdu(), cut in 0..200usize) {
            let bytes = pdu.write(1, 2, 3);
            let cut = &bytes[..cut.min(bytes.len() - 1)];
            if let Ok((_, found)) = read(cut) {
                prop_assert_ne!(found, pdu);
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0..20u8) {
            let mut bytes = bytes;
            if let [version, type_, ..] = &mut bytes[..] {
                (*version, *type_) = (1, kind);
            }
            let _ = read(&bytes);
        }
    }
}
