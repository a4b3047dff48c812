//! The fields of a batch of packets, side by side.

use crate::{
    Family, Filter, Key, Matches, State,
    classes::FilterAddress,
    conditions::{KIND_NO_UPPER, Number, kind, kind_of},
    key::{Headers, TCP_LEN, UDP_LEN},
};
use wire::{
    ethernet::ETHERNET_LEN,
    ip::{IPV4_MIN_LEN, PROTOCOL_TCP, PROTOCOL_UDP},
};

/// Packets in a batch at most.
pub const BATCH: usize = 64;

/// The same field of up to [`BATCH`] packets of one family lies together, so that the processor works on
/// many at a time. Those that few rules match share a word.
pub struct Fields<A: FilterAddress> {
    sources: [A::Bits; BATCH],
    destinations: [A::Bits; BATCH],
    /// Source port above, destination port below.
    ports: [u32; BATCH],
    kinds: [u16; BATCH],
    /// From the low end: flags, ICMP type, DSCP and TTL, a byte each, length and interface.
    rest: [u64; BATCH],
    /// A filter needs `rest` of plain packets.
    wants_rest: bool,
    /// `None`: no filter needs them.
    rare: Option<Box<Rare>>,
    count: usize,
    /// A bit for each fragment, by place.
    fragments: u64,
}

/// The fields of an upper-layer header that rules match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// The protocol.
    pub protocol: u8,
    /// Source port above, destination port below.
    pub ports: u32,
    /// TCP flags, or the ICMP type.
    pub detail: u8,
}

/// Fields that few filters ask for.
struct Rare {
    /// The MACs that frames go to, and come from.
    macs: [[u64; BATCH]; 2],
    /// The IPv6 extension headers, and whether the packet is a later fragment.
    headers: [Headers; BATCH],
    /// The priorities of the frames' VLAN tags.
    priorities: [u8; BATCH],
}

impl Default for Rare {
    fn default() -> Self {
        Self { macs: [[0; BATCH]; 2], headers: [Headers::default(); BATCH], priorities: [0; BATCH] }
    }
}

/// The first bytes of a frame, and the numbers that go with it.
#[derive(Clone, Copy)]
pub struct Head<'p> {
    /// Bytes beyond the frame's length are arbitrary.
    pub bytes: &'p [u8; HEAD],
    /// Bytes of the whole frame.
    pub length: u16,
    /// The number of the ingress interface.
    pub interface: u16,
}

/// Bytes of a [`Head`].
pub const HEAD: usize = 64;

/// The place of TCP's flags in a plain IPv4 frame.
const FLAGS_AT: usize = ETHERNET_LEN + IPV4_MIN_LEN + 13;

/// Headers of IPv4 frames as they are, side by side: few loads and stores for each packet, and then vectors.
struct Words {
    /// From version to fragment offset.
    first: [u64; BATCH],
    /// From TTL to source address.
    second: [u64; BATCH],
    /// Destination address and ports.
    third: [u64; BATCH],
    lengths: [u16; BATCH],
    flags: [u8; BATCH],
    interfaces: [u16; BATCH],
}

/// The two ends of a packet.
pub struct Ends<A: FilterAddress> {
    /// Its source address.
    pub source: A::Bits,
    /// Its destination address.
    pub destination: A::Bits,
    /// Source port above, destination port below.
    pub ports: u32,
    /// Its upper-layer protocol, if it is no fragment and the header of that layer is whole.
    pub protocol: Option<u8>,
    /// TCP flags.
    pub flags: u8,
}

impl<A: FilterAddress> Default for Fields<A> {
    fn default() -> Self {
        Self {
            sources: [A::Bits::default(); BATCH],
            destinations: [A::Bits::default(); BATCH],
            ports: [0; BATCH],
            kinds: [0; BATCH],
            rest: [0; BATCH],
            wants_rest: false,
            rare: None,
            count: 0,
            fragments: 0,
        }
    }
}

impl<A: FilterAddress> Fields<A> {
    /// Makes packets added from now on have the fields that this filter needs; by default they have neither
    /// MACs, priorities nor extension headers, since most filters need none. Those of [`Self::push_heads`] have neither
    /// flags, DSCP, TTL, length nor interface either.
    pub fn want(&mut self, filter: &Filter) {
        self.wants_rest |= filter.rules.iter().any(|rule| needs_rest(&rule.matches));
        if filter.asks_for_macs() || filter.asks_for_headers() || filter.asks_for_priorities() {
            self.rare.get_or_insert_default();
        }
    }

    /// Forgets all packets.
    pub fn clear(&mut self) {
        self.count = 0;
        self.fragments = 0;
    }

    /// Packets.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there is no packet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a packet; one beyond [`BATCH`] is ignored.
    #[inline(always)]
    pub fn push(&mut self, key: &Key) {
        if self.count < BATCH {
            self.put(self.count, key);
            self.count += 1;
        }
    }

    /// Sets the packet at this place.
    #[inline(always)]
    fn put(&mut self, place: usize, key: &Key) {
        let at = place & (BATCH - 1);
        self.sources[at] = A::narrow(key.source);
        self.destinations[at] = A::narrow(key.destination);
        self.ports[at] = u32::from(key.ports[0]) << 16 | u32::from(key.ports[1]);
        self.kinds[at] = kind(key);
        let bytes = u32::from_le_bytes([key.flags, key.icmp_type, key.dscp, key.ttl]);
        let words = u64::from(key.length) << 32 | u64::from(key.interface) << 48;
        self.rest[at] = u64::from(bytes) | words;
        if let Some(rare) = &mut self.rare {
            rare.macs.iter_mut().zip(key.macs).for_each(|(macs, mac)| macs[at] = mac);
            rare.headers[at] = key.headers_and_later();
            rare.priorities[at] = key.priority;
        }
    }

    /// Adds the packet of a frame, arguments as for [`Key::of_ip4`]; true if it is a fragment that a filter
    /// should drop ([`Key::is_tiny`]).
    #[inline(always)]
    pub fn push_frame(&mut self, frame: &[u8], length: usize, interface: u16) -> bool {
        let place = self.count;
        if place >= BATCH {
            return false;
        }
        self.count += 1;
        self.put_frame(place, (frame, length), interface)
    }

    /// As [`Self::push_frame`], at a place that [`Self::push_heads`] has left.
    #[inline(always)]
    pub fn put_frame(
        &mut self,
        place: usize,
        (frame, length): (&[u8], usize),
        interface: u16,
    ) -> bool {
        // A key in registers: written to memory byte by byte, it cannot be read as words at once.
        if let Some(key) = A::plain_key(frame, length, interface) {
            let key = if self.rare.is_none() { key } else { key.with_macs(frame) };
            self.put(place, &key);
            return false;
        }
        self.put_any(place, (frame, length), interface)
    }

    #[inline(never)]
    fn put_any(&mut self, place: usize, (frame, length): (&[u8], usize), interface: u16) -> bool {
        let key = A::key(frame, length, interface);
        self.fragments |= u64::from(key.is_fragment()) << (place % BATCH);
        self.put(place, &key);
        key.is_tiny()
    }

    /// Adds the packets of so many frames, at most [`BATCH`], to no others. Returns a bit for each place of a packet that is still
    /// to be set by [`Self::put_frame`]: those that are not plain IPv4 packets.
    #[inline(always)]
    pub fn push_heads<'p>(&mut self, count: usize, heads: impl Iterator<Item = Head<'p>>) -> u64 {
        self.count = count.min(BATCH);
        let all = u64::MAX.checked_shr(64 - self.count as u32).unwrap_or(0);
        if A::OF == Family::Ip6 || self.rare.is_some() {
            return all;
        }
        let mut words = Words::default();
        if self.wants_rest {
            words.read(heads, |words, at, head| {
                words.flags[at] = head.bytes[FLAGS_AT];
                words.interfaces[at] = head.interface;
            });
        } else {
            words.read(heads, |_, _, _| {});
        }
        self.put_words(&words) & all
    }

    /// This is known of the connection of the packet at this place, which was pushed without a state.
    #[inline(always)]
    pub fn set_state(&mut self, place: usize, state: State) {
        self.kinds[place & (BATCH - 1)] |= kind_of(state);
    }

    /// Returns true if the packet at this place belongs to a connection that answers, or is an error about one; see
    /// [`Self::set_state`].
    #[inline]
    pub fn is_of_connection(&self, place: usize) -> bool {
        let states = kind_of(State::Established) | kind_of(State::Related);
        self.kinds[place & (BATCH - 1)] & states != 0
    }

    /// Returns a bit for each fragment of a packet, by its place.
    #[inline(always)]
    pub fn fragments(&self) -> u64 {
        self.fragments
    }

    /// Returns the upper-layer header of the packet at this place; `None` if it is not known.
    pub fn upper(&self, place: usize) -> Option<Upper> {
        let place = place & (BATCH - 1);
        let (kind, rest) = (self.kinds[place], self.rest[place]);
        let detail = rest as u8 | (rest >> 8) as u8;
        let upper = Upper { protocol: kind as u8, ports: self.ports[place], detail };
        (kind & KIND_NO_UPPER == 0).then_some(upper)
    }

    /// Gives the packet at this place, a fragment without one, this upper-layer header.
    pub fn lend_upper(&mut self, place: usize, upper: Upper) {
        let Upper { protocol, ports, detail } = upper;
        let place = place & (BATCH - 1);
        self.kinds[place] = self.kinds[place] & !(KIND_NO_UPPER | 0xff) | u16::from(protocol);
        self.ports[place] = ports;
        let shift = if protocol == PROTOCOL_TCP { 0 } else { 8 };
        self.rest[place] = self.rest[place] & !0xffff | u64::from(detail) << shift;
    }

    /// Returns the ingress interface of the packet at this place.
    pub fn interface(&self, place: usize) -> u16 {
        (self.rest[place & (BATCH - 1)] >> 48) as u16
    }

    /// Sets the priority of the VLAN tag of the packet at this place, which was pushed without one.
    pub fn set_priority(&mut self, place: usize, priority: u8) {
        if let Some(rare) = &mut self.rare {
            rare.priorities[place & (BATCH - 1)] = priority;
        }
    }

    /// The fields of the packet at this place that identify its flow.
    #[inline(always)]
    pub fn ends(&self, place: usize) -> Ends<A> {
        let place = place & (BATCH - 1);
        let kind = self.kinds[place];
        Ends {
            source: self.sources[place],
            destination: self.destinations[place],
            ports: self.ports[place],
            protocol: u8::try_from(kind).ok(),
            flags: self.rest[place] as u8,
        }
    }

    /// The source address of the packet at this place.
    #[inline]
    pub fn source(&self, place: usize) -> A::Bits {
        self.sources.get(place).copied().unwrap_or_default()
    }

    /// The packets and the next few places, whose fields are those of packets before: loops over whole
    /// vectors have no rest.
    pub(crate) fn padded(&self) -> usize {
        const LANES: usize = 32 / size_of::<u16>();
        self.count.next_multiple_of(LANES).min(BATCH)
    }

    /// Source and destination addresses of 32 bits.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<[&[u32; BATCH]; 2]> {
        Some([A::lanes(&self.sources)?, A::lanes(&self.destinations)?])
    }

    /// [`Number::Kind`] above, the destination port below.
    #[inline(always)]
    pub(crate) fn services(&self) -> [u32; BATCH] {
        std::array::from_fn(|at| self.service(at))
    }

    /// Of [`Self::services`], the packet's at this place.
    #[inline(always)]
    pub(crate) fn service(&self, place: usize) -> u32 {
        let at = place % BATCH;
        u32::from(self.kinds[at]) << 16 | self.ports[at] & 0xffff
    }

    pub(crate) fn sources(&self) -> &[A::Bits] {
        &self.sources[..self.padded()]
    }

    pub(crate) fn destinations(&self) -> &[A::Bits] {
        &self.destinations[..self.padded()]
    }

    /// The destination address of the packet at this place.
    pub(crate) fn destination(&self, place: usize) -> A::Bits {
        self.destinations.get(place).copied().unwrap_or_default()
    }

    /// The MACs that frames go to (0) or come from (1); none if they were not wanted.
    pub(crate) fn macs(&self, end: usize) -> &[u64] {
        let macs = self.rare.as_ref().and_then(|rare| rare.macs.get(end));
        macs.map_or(&[], |macs| &macs[..self.padded()])
    }

    /// The IPv6 extension headers; none if they were not wanted.
    pub(crate) fn headers(&self) -> &[Headers] {
        self.rare.as_ref().map_or(&[], |rare| &rare.headers[..self.padded()])
    }

    /// One number of the packet at this place.
    pub(crate) fn number(&self, number: Number, place: usize) -> u16 {
        let mut all = [0; BATCH];
        self.numbers(number, &mut all);
        all[place & (BATCH - 1)]
    }

    /// One number of all packets.
    #[inline]
    pub(crate) fn numbers(&self, number: Number, out: &mut [u16]) {
        match number {
            Number::Kind => copy(&self.kinds, out, |kind| kind),
            Number::FromPort => copy(&self.ports, out, |ports| (ports >> 16) as u16),
            Number::ToPort => copy(&self.ports, out, |ports| ports as u16),
            Number::Flags => copy(&self.rest, out, |rest| rest as u16 & 0xff),
            Number::Icmp => copy(&self.rest, out, |rest| (rest >> 8) as u16 & 0xff),
            Number::Dscp => copy(&self.rest, out, |rest| (rest >> 16) as u16 & 0xff),
            Number::Ttl => copy(&self.rest, out, |rest| (rest >> 24) as u16 & 0xff),
            Number::Length => copy(&self.rest, out, |rest| (rest >> 32) as u16),
            Number::Interface => copy(&self.rest, out, |rest| (rest >> 48) as u16),
            Number::Extensions => match &self.rare {
                Some(rare) => copy(&rare.headers, out, |headers| headers.kinds().into()),
                None => out.fill(0),
            },
            Number::Priority => match &self.rare {
                Some(rare) => copy(&rare.priorities, out, u16::from),
                None => out.fill(0),
            },
        }
    }
}

impl Default for Words {
    #[inline(always)]
    fn default() -> Self {
        Self {
            first: [0; BATCH],
            second: [0; BATCH],
            third: [0; BATCH],
            lengths: [0; BATCH],
            flags: [0; BATCH],
            interfaces: [0; BATCH],
        }
    }
}

/// `LEN` bytes from `AT` on.
#[inline(always)]
fn bytes<const AT: usize, const LEN: usize>(head: &[u8; HEAD]) -> [u8; LEN] {
    const { assert!(AT + LEN <= HEAD) };
    let mut bytes = [0; LEN];
    bytes.copy_from_slice(&head[AT..AT + LEN]);
    bytes
}

impl Words {
    #[inline(always)]
    fn read<'p>(
        &mut self,
        heads: impl Iterator<Item = Head<'p>>,
        more: impl Fn(&mut Self, usize, &Head<'p>),
    ) {
        for (at, head) in heads.take(BATCH).enumerate() {
            let at = at & (BATCH - 1);
            self.first[at] = u64::from_le_bytes(bytes::<14, 8>(head.bytes));
            self.second[at] = u64::from_le_bytes(bytes::<22, 8>(head.bytes));
            self.third[at] = u64::from_le_bytes(bytes::<30, 8>(head.bytes));
            self.lengths[at] = head.length;
            more(self, at, &head);
        }
    }
}

impl<A: FilterAddress> Fields<A> {
    /// Sets the packets of these headers. Returns a bit for each that is not plain, as [`Key::of_plain_ip4`] has it.
    #[inline(always)]
    fn put_words(&mut self, words: &Words) -> u64 {
        let Some(sources) = A::lanes_mut(&mut self.sources) else { return u64::MAX };
        let Some(destinations) = A::lanes_mut(&mut self.destinations) else { return u64::MAX };
        let Words { first, second, third, lengths, flags, interfaces } = words;
        let mut odd = [0u32; BATCH];
        let mut any = 0;
        for at in 0..BATCH {
            let (first, second, third) = (first[at], second[at], third[at]);
            sources[at] = ((second >> 32) as u32).swap_bytes();
            destinations[at] = (third as u32).swap_bytes();
            self.ports[at] = ((third >> 32) as u32).swap_bytes();
            let protocol = (second >> 8) as u32 & 0xff;
            self.kinds[at] = protocol as u16;
            odd[at] = oddity(first, protocol, lengths[at]);
            any |= odd[at];
        }
        if self.wants_rest {
            for at in 0..BATCH {
                let (first, second) = (first[at], second[at]);
                // All ones or none: with a jump the loop would not become vectors.
                let is_tcp =
                    u64::from((second >> 8) & 0xff == u64::from(PROTOCOL_TCP)).wrapping_neg();
                let flags = u64::from(flags[at]) & is_tcp;
                let dscp = (first >> 10) & 0x3f;
                let length = u64::from(ip_length(first, lengths[at]));
                let low = flags | dscp << 16 | (second & 0xff) << 24;
                self.rest[at] = low | length << 32 | u64::from(interfaces[at]) << 48;
            }
        }
        if any == 0 {
            return 0;
        }
        let bits = odd.iter().enumerate().map(|(at, odd)| u64::from(*odd != 0) << at);
        bits.fold(0, |all, bit| all | bit)
    }
}

/// Bytes of an IPv4 packet: no more than the frame has.
#[inline(always)]
fn ip_length(first: u64, frame: u16) -> u32 {
    let total = ((first >> 16) as u16).swap_bytes();
    total.min(frame.saturating_sub(ETHERNET_LEN as u16)).into()
}

/// Returns 0 for a whole TCP or UDP packet without options, whose headers are within the frame.
#[inline(always)]
fn oddity(first: u64, protocol: u32, frame: u16) -> u32 {
    const PLAIN: u32 = 0x45;
    /// More fragments and the fragment offset, in the order of the packet's bytes.
    const FRAGMENT: u32 = 0x3fff_u16.swap_bytes() as u32;
    let version = first as u32 & 0xff ^ PLAIN;
    let fragment = (first >> 48) as u32 & FRAGMENT;
    let needed = match protocol as u8 {
        PROTOCOL_TCP => (IPV4_MIN_LEN + TCP_LEN) as u32,
        PROTOCOL_UDP => (IPV4_MIN_LEN + UDP_LEN) as u32,
        _ => u32::MAX,
    };
    version | fragment | needed.saturating_sub(ip_length(first, frame))
}

fn needs_rest(matches: &Matches) -> bool {
    let is_in_rest = |number: &&Number| match number {
        Number::Kind | Number::FromPort | Number::ToPort => false,
        // They are [`Rare`].
        Number::Extensions | Number::Priority => false,
        Number::Flags | Number::Icmp | Number::Dscp | Number::Ttl => true,
        Number::Length | Number::Interface => true,
    };
    let mut fields = Number::ALL.iter().filter(is_in_rest);
    // Of packets that are tracked flags are asked for.
    !matches.state.is_empty() || fields.any(|field| field.allowed(matches).is_some())
}

#[inline(always)]
fn copy<T: Copy>(from: &[T; BATCH], out: &mut [u16], number: impl Fn(T) -> u16) {
    out.iter_mut().zip(from).for_each(|(out, from)| *out = number(*from));
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use fib::synthetic::Random;

    use super::*;

    /// Everything that the classifier reads.
    fn all(fields: &Fields<Ipv4Addr>) -> Vec<[u64; 3]> {
        let one = |at: usize| {
            let numbers = Number::ALL.map(|number| u64::from(fields.number(number, at)));
            let numbers = numbers.iter().fold(0, |all: u64, of| all.rotate_left(13) ^ of);
            [fields.source(at).into(), fields.destination(at).into(), numbers]
        };
        (0..fields.len()).map(one).collect()
    }

    /// A frame of TCP or UDP, some of whose header bytes and whose length may be wrong.
    fn frame(random: &mut Random) -> (Vec<u8>, usize) {
        let mut frame = vec![0; HEAD];
        (0..HEAD).for_each(|at| frame[at] = random.word() as u8);
        let length = 34 + random.word() as usize % 40;
        frame[14..24].copy_from_slice(&[0x45, 0, 0, length as u8 - 14, 1, 2, 0x40, 0, 60, 17]);
        if random.chance(50) {
            frame[23] = 6;
        }
        if random.chance(30) {
            frame[14 + random.word() as usize % 10] = random.word() as u8;
        }
        frame.resize(length.max(HEAD), 7);
        (frame, length)
    }

    #[test]
    fn heads_are_read_as_frames_are() {
        let matches = Matches { ttl: Some(1..=2), ..Matches::default() };
        let (mut plain, mut odd_ones) = (0, 0);
        for round in 0..300 {
            let mut random = Random::new(round);
            let count = random.word() as usize % (BATCH + 1);
            let frames: Vec<_> = (0..count).map(|_| frame(&mut random)).collect();
            let (mut one, mut other) = (Fields::default(), Fields::<Ipv4Addr>::default());
            (one.wants_rest, other.wants_rest) = [needs_rest(&matches); 2].into();
            let heads = frames.iter().map(|(frame, length)| Head {
                bytes: frame.first_chunk().unwrap(),
                length: *length as u16,
                interface: 9,
            });
            let odd = one.push_heads(count, heads);
            for (place, (frame, length)) in frames.iter().enumerate() {
                let own = &frame[..*length];
                let is_tiny = other.push_frame(own, *length, 9);
                if odd >> place & 1 != 0 {
                    assert_eq!(one.put_frame(place, (own, *length), 9), is_tiny);
                    odd_ones += 1;
                } else {
                    assert!(!is_tiny);
                    plain += 1;
                }
            }
            assert_eq!(odd.checked_shr(count as u32).unwrap_or(0), 0, "no packet there");
            assert_eq!(all(&one), all(&other), "{round}");
            assert_eq!(one.fragments(), other.fragments());
        }
        assert!(plain > 1000 && odd_ones > 1000, "{plain} {odd_ones}");
    }

    #[test]
    fn fields_that_no_rule_needs_are_not_read() {
        for (matches, needs) in [
            (Matches { protocol: vec![6], to_port: vec![22..=22], ..Matches::default() }, false),
            (Matches { state: vec![State::Established], ..Matches::default() }, true),
            (Matches { length: Some(20..=99), ..Matches::default() }, true),
            (Matches { interface: vec![3], ..Matches::default() }, true),
            (Matches { dscp: vec![46], ..Matches::default() }, true),
            (Matches { ttl: Some(1..=1), ..Matches::default() }, true),
            (Matches { icmp: vec![8], ..Matches::default() }, true),
            (
                Matches {
                    flags: Some(crate::rule::Bits { value: 2, mask: 18 }),
                    ..Matches::default()
                },
                true,
            ),
        ] {
            assert_eq!(needs_rest(&matches), needs, "{matches:?}");
        }
    }
}
