//! Fields of the lookup other than addresses: numbers, and fields that are converted to numbers.

mod macs;
mod routing;
mod sets;

use wire::MacAddr;

pub(super) use macs::{MACS_MAX, MacField};
pub(super) use routing::{ROUTING_TYPES_MAX, RoutingField};
pub(super) use sets::{LISTS_MAX, SETS_VALUES, SetField, SetLists};

use crate::{Matches, classes::FilterAddress, conditions::Number, fields::Fields};

/// Source or destination.
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

    /// Returns the description for messages.
    pub fn what(self) -> &'static str {
        match self {
            Self::Source => "different lists in from_set",
            Self::Destination => "different lists in to_set",
        }
    }
}

/// Source of a number.
pub(super) enum Field<A: FilterAddress> {
    Number(Number),
    Sets(SetField<A>),
    Macs(MacField),
    Routing(RoutingField),
}

impl<A: FilterAddress> Field<A> {
    /// Returns the number of its values.
    pub fn values(&self) -> usize {
        match self {
            Self::Number(number) => number.values(),
            Self::Sets(_) => SETS_VALUES,
            Self::Macs(of) => of.len() + 1,
            Self::Routing(of) => of.values(),
        }
    }

    /// Has the processor fetch the memory that [`Self::all`] reads first.
    #[inline(always)]
    pub fn prefetch(&self, fields: &Fields<A>) {
        match self {
            Self::Sets(of) if of.end == End::Source => of.prefetch(fields.sources()),
            Self::Sets(of) => of.prefetch(fields.destinations()),
            Self::Number(_) | Self::Macs(_) | Self::Routing(_) => {}
        }
    }

    /// Finds the numbers of all packets; results at unused positions are meaningless.
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

    /// Finds the number of the packet at this position.
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
