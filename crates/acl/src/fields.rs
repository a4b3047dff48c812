//! The fields of a batch of packets, side by side.

use crate::{
    Filter, Key, State,
    classes::FilterAddress,
    conditions::{KIND_NO_UPPER, Number, kind, kind_of},
    key::Headers,
};
use wire::ip::PROTOCOL_TCP;

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
            rare: None,
            count: 0,
            fragments: 0,
        }
    }
}

impl<A: FilterAddress> Fields<A> {
    /// Makes packets added from now on have the fields that this filter needs; by default they have neither
    /// MACs, priorities nor extension headers, since most filters need none.
    pub fn want(&mut self, filter: &Filter) {
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
        let at = self.count;
        if at >= BATCH {
            return;
        }
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
        self.count += 1;
    }

    /// Adds the packet of a frame, arguments as for [`Key::of_ip4`]; true if it is a fragment that a filter
    /// should drop ([`Key::is_tiny`]).
    #[inline(always)]
    pub fn push_frame(&mut self, frame: &[u8], length: usize, interface: u16) -> bool {
        // A key in registers: written to memory byte by byte, it cannot be read as words at once.
        if let Some(key) = A::plain_key(frame, length, interface) {
            let key = if self.rare.is_none() { key } else { key.with_macs(frame) };
            self.push(&key);
            return false;
        }
        self.push_any(frame, length, interface)
    }

    #[inline(never)]
    fn push_any(&mut self, frame: &[u8], length: usize, interface: u16) -> bool {
        let key = A::key(frame, length, interface);
        self.fragments |= u64::from(key.is_fragment()) << (self.count % BATCH);
        self.push(&key);
        key.is_tiny()
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

#[inline(always)]
fn copy<T: Copy>(from: &[T; BATCH], out: &mut [u16], number: impl Fn(T) -> u16) {
    out.iter_mut().zip(from).for_each(|(out, from)| *out = number(*from));
}
