//! The conditions of a rule on a packet's numbers: everything but its addresses, as ranges.

use std::ops::RangeInclusive;

use crate::{
    Bits, Extension, Matches, State,
    key::{FRAGMENT, Key, LATER_KIND, NO_UPPER},
};

/// A number of a packet that rules match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// Protocol, in bits 8 and 9 whether the packet is a fragment and whether its upper layer is unknown, and in
    /// bits 10 and 11 its connection's state: rules with ports ask for all of the first, and one field costs
    /// less than two.
    Kind,
    FromPort,
    ToPort,
    Flags,
    Icmp,
    Dscp,
    Ttl,
    Length,
    Interface,
    /// A bit for each [`crate::Extension`] that the packet has, and [`LATER_KIND`].
    Extensions,
    /// That of the frame's VLAN tag.
    Priority,
}

/// Bit of [`Number::Kind`]: a fragment.
const KIND_FRAGMENT: u16 = 1 << 8;
/// Bit of [`Number::Kind`]: ports, flags and ICMP type are not known.
pub(crate) const KIND_NO_UPPER: u16 = 1 << 9;

/// The place of [`State`] in [`Number::Kind`].
const KIND_STATE: u32 = 10;

/// Alternatives; a packet's number is in one of them.
pub(crate) type Ranges = Vec<RangeInclusive<u16>>;

impl Number {
    pub const ALL: [Self; 11] = [
        Self::Kind,
        Self::FromPort,
        Self::ToPort,
        Self::Flags,
        Self::Icmp,
        Self::Dscp,
        Self::Ttl,
        Self::Length,
        Self::Interface,
        Self::Extensions,
        Self::Priority,
    ];

    /// The number of its values.
    pub fn values(self) -> usize {
        match self {
            Self::Kind => 1 << 12,
            Self::Flags
            | Self::Icmp
            | Self::Dscp
            | Self::Ttl
            | Self::Extensions
            | Self::Priority => 1 << 8,
            Self::FromPort | Self::ToPort | Self::Length | Self::Interface => 1 << 16,
        }
    }

    /// The values that a rule allows, in order and apart; `None`: all.
    pub fn allowed(self, matches: &Matches) -> Option<Ranges> {
        match self {
            Self::Kind => kinds(matches),
            Self::FromPort => list(&matches.from_port),
            Self::ToPort => list(&matches.to_port),
            Self::Flags => matches.flags.map(flags),
            Self::Icmp => numbers(matches.icmp.iter().map(|&kind| kind.into())),
            Self::Dscp => numbers(matches.dscp.iter().map(|&dscp| dscp.into())),
            Self::Ttl => {
                let ttl = matches.ttl.as_ref()?;
                Some(merge(vec![(*ttl.start()).into()..=(*ttl.end()).into()]))
            }
            Self::Length => list(matches.length.as_slice()),
            Self::Interface => numbers(matches.interface.iter().copied()),
            Self::Extensions => extensions(&matches.extension, matches.later),
            Self::Priority => numbers(matches.priority.iter().map(|&priority| priority.into())),
        }
    }
}

/// [`Number::Kind`] of a packet.
#[inline(always)]
pub(crate) fn kind(key: &Key) -> u16 {
    let fragment = u16::from(key.fragment & FRAGMENT) << 8;
    let no_upper = u16::from(key.fragment & NO_UPPER) << 2;
    u16::from(key.protocol) | fragment | no_upper | kind_of(key.state)
}

/// The state's part of [`Number::Kind`].
#[inline(always)]
pub(crate) fn kind_of(state: State) -> u16 {
    (state as u16) << KIND_STATE
}

fn kinds(matches: &Matches) -> Option<Ranges> {
    let upper = matches.needs_upper_layer();
    let is_free = matches.protocol.is_empty() && matches.state.is_empty();
    if is_free && matches.fragment.is_none() && !upper {
        return None;
    }
    let protocols = match matches.protocol.is_empty() {
        true => vec![0..=255],
        false => {
            merge(matches.protocol.iter().map(|&number| number.into()..=number.into()).collect())
        }
    };
    let fragments = [0, KIND_FRAGMENT, KIND_NO_UPPER, KIND_FRAGMENT | KIND_NO_UPPER];
    let allowed = |bits: &u16| {
        matches.fragment.is_none_or(|wanted| wanted == (bits & KIND_FRAGMENT != 0))
            && !(upper && bits & KIND_NO_UPPER != 0)
    };
    let states: Vec<u16> = match matches.state.is_empty() {
        true => (0..4).map(|state| state << KIND_STATE).collect(),
        false => matches.state.iter().copied().map(kind_of).collect(),
    };
    let combined = fragments.into_iter().filter(allowed);
    let bits = combined.flat_map(|bits| states.iter().map(move |state| bits | state));
    let of =
        |bits: u16| protocols.iter().map(move |range| range.start() + bits..=range.end() + bits);
    Some(merge(bits.flat_map(of).collect()))
}

/// [`Number::Kind`] that a rule allows, as alternatives of bits that are compared, and their values; `None`: all.
pub(crate) fn kinds_by_bits(matches: &Matches) -> Option<Vec<(u16, u16)>> {
    kinds(matches)?;
    let fragment = matches
        .fragment
        .map_or((0, 0), |wanted| (KIND_FRAGMENT, if wanted { KIND_FRAGMENT } else { 0 }));
    let upper = (if matches.needs_upper_layer() { KIND_NO_UPPER } else { 0 }, 0);
    let all = |values: Vec<(u16, u16)>| if values.is_empty() { vec![(0, 0)] } else { values };
    let protocols = all(matches.protocol.iter().map(|&number| (0xff, number.into())).collect());
    let states =
        all(matches.state.iter().map(|&state| (3 << KIND_STATE, kind_of(state))).collect());
    let join = |parts: [(u16, u16); 4]| {
        parts.iter().fold((0, 0), |(mask, value), part| (mask | part.0, value | part.1))
    };
    let of = |protocol| states.iter().map(move |&state| join([fragment, upper, protocol, state]));
    Some(protocols.into_iter().flat_map(of).collect())
}

/// The sets that have one of these, of packets that are later fragments or not.
fn extensions(wanted: &[Extension], later: Option<bool>) -> Option<Ranges> {
    let wanted = wanted.iter().fold(0, |bits, of| bits | of.bit());
    let fits = |bits: &u8| {
        (wanted == 0 || bits & wanted != 0)
            && later.is_none_or(|later| later == (bits & LATER_KIND != 0))
    };
    let asks = wanted != 0 || later.is_some();
    let fitting = (0..=255u8).filter(fits);
    asks.then(|| merge(fitting.map(|bits| bits.into()..=bits.into()).collect()))
}

fn flags(bits: Bits) -> Ranges {
    let fits = (0..=255u8).filter(|flags| flags & bits.mask == bits.value);
    merge(fits.map(|flags| flags.into()..=flags.into()).collect())
}

fn list(ranges: &[RangeInclusive<u16>]) -> Option<Ranges> {
    (!ranges.is_empty()).then(|| merge(ranges.to_vec()))
}

fn numbers(numbers: impl ExactSizeIterator<Item = u16>) -> Option<Ranges> {
    (numbers.len() != 0).then(|| merge(numbers.map(|number| number..=number).collect()))
}

/// The ranges in order, without empty ones; those that overlap or touch are joined.
pub(crate) fn merge(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable_by_key(|range| *range.start());
    let mut merged = Ranges::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match merged.last_mut() {
            Some(last) if *range.start() <= last.end().saturating_add(1) => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => merged.push(range),
        }
    }
    merged
}
