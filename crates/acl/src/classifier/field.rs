//! The fields that packets are classified by beside their addresses: numbers, and what is made into numbers.

mod macs;
mod routing;
mod sets;

use wire::MacAddr;

pub(super) use macs::{MACS_MAX, MacField};
pub(super) use routing::{ROUTING_TYPES_MAX, RoutingField};
pub(super) use sets::{LISTS_MAX, SETS_VALUES, SetField, SetLists};

use crate::{Matches, classes::FilterAddress, conditions::Number, fields::Fields};

/// An end of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Destination = 0,
    Source = 1,
}

impl End {
    fn list(self, matches: &Matches) -> &[String] {
        match self {
            Self::Source => &matches.from_set,
            Self::Destination => &matches.to_set,
        }
    }

    fn macs(self, matches: &Matches) -> &[MacAddr] {
        match self {
            Self::Source => &matches.from_mac,
            Self::Destination => &matches.to_mac,
        }
    }

    /// For messages.
    pub fn what(self) -> &'static str {
        match self {
            Self::Source => "different lists in from_set",
            Self::Destination => "different lists in to_set",
        }
    }
}

/// A number, or what it is made of.
pub(super) enum Field<A: FilterAddress> {
    Number(Number),
    Sets(SetField<A>),
    Macs(MacField),
    Routing(RoutingField),
}

impl<A: FilterAddress> Field<A> {
    /// How many values it has.
    pub fn values(&self) -> usize {
        match self {
            Self::Number(number) => number.values(),
            Self::Sets(_) => SETS_VALUES,
            Self::Macs(of) => of.len() + 1,
            Self::Routing(of) => of.values(),
        }
    }

    /// Of all packets; those of places without one mean nothing.
    #[inline(always)]
    pub fn all(&self, fields: &Fields<A>, out: &mut [u16]) {
        match self {
            Self::Number(number) => fields.numbers(*number, out),
            Self::Sets(of) if of.end == End::Source => of.find(fields.sources(), out),
            Self::Sets(of) => of.find(fields.destinations(), out),
            Self::Macs(of) => of.find(fields.macs(of.end as usize), out),
            Self::Routing(of) => of.find(fields.headers(), out),
        }
    }

    /// Of the packet at this place.
    pub fn one(&self, fields: &Fields<A>, place: usize) -> u16 {
        let mut number = [0];
        match self {
            Self::Number(number) => return fields.number(*number, place),
            Self::Sets(of) if of.end == End::Source => {
                of.find(&[fields.source(place)], &mut number)
            }
            Self::Sets(of) => of.find(&[fields.destination(place)], &mut number),
            Self::Macs(of) => {
                let macs = fields.macs(of.end as usize);
                of.find(macs.get(place..).unwrap_or_default(), &mut number);
            }
            Self::Routing(of) => {
                let headers = fields.headers();
                of.find(headers.get(place..).unwrap_or_default(), &mut number);
            }
        }
        number[0]
    }
}
