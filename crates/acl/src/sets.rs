//! Named sets of prefixes, whose elements can change while packets are looked up in them.
//!
//! All sets of a family are one route table: the longest prefix that holds an address determines its sets. The
//! table's numbers are *classes*, each of which stands for some sets, one bit each; so an element of one set
//! changes one route, and those within it. Nothing is rebuilt, regardless of the filters that use the set.
//!
//! ```text
//! 192.0.2.0/24   in "customers"                -> class 1: customers
//! 192.0.2.7/32   in "blocked"                  -> class 2: customers, blocked
//! ```
//!
//! One owner has the [`Sets`] and changes them; readers have [`SetReaders`]. A class without prefixes is reused once
//! no reader can still hold its number.

mod family;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use fib::{Algorithm, GracePeriod};
use ipnet::IpNet;

use self::family::FamilySets;
pub use self::family::Members;
use crate::FilterAddress;

/// Most sets.
pub const SETS_MAX: usize = 64;

/// Identifier of a set for its owner: a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(u8);

/// Error: an element could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The route table has no room.
    #[error("no room: {0}")]
    Table(#[from] fib::Error),
    /// More combinations of sets than there are classes.
    #[error("the sets overlap in more than {most} ways; use fewer sets with common addresses")]
    Classes {
        /// The limit.
        most: usize,
    },
}

/// All sets: the owner's side.
pub struct Sets {
    names: Vec<Option<Arc<str>>>,
    ip4: FamilySets<Ipv4Addr>,
    ip6: FamilySets<Ipv6Addr>,
}

/// The readers' side, for lookups. Sets added later are not in it.
#[derive(Clone)]
pub struct SetReaders {
    names: Vec<Option<Arc<str>>>,
    pub(crate) ip4: Members<Ipv4Addr>,
    pub(crate) ip6: Members<Ipv6Addr>,
}

impl Sets {
    /// Creates the owner's side without sets. `grace`: grace period of all future readers.
    ///
    /// # Errors
    /// There is no memory for the tables.
    pub fn new(grace: impl Fn() -> Box<dyn GracePeriod>) -> Result<Self, fib::Error> {
        // The fastest table has room for fewer single hosts than the other.
        const TABLES: [Algorithm; 2] = [Algorithm::Runmap, Algorithm::Poptrie];
        let [fast4, roomy4] = TABLES.map(|algorithm| fib::new_ipv4(algorithm, grace()));
        let [fast6, roomy6] = TABLES.map(|algorithm| fib::new_ipv6(algorithm, grace()));
        Ok(Self {
            names: vec![None; SETS_MAX],
            ip4: FamilySets::new([fast4?, roomy4?], grace()),
            ip6: FamilySets::new([fast6?, roomy6?], grace()),
        })
    }

    /// Returns the set of this name.
    pub fn find(&self, name: &str) -> Option<SetId> {
        let place = self.names.iter().position(|known| known.as_deref() == Some(name))?;
        Some(SetId(place as u8))
    }

    /// Returns the names of the sets.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().flatten().map(|name| &**name)
    }

    /// Returns the set of this name, or adds it without elements; `None`: there are [`SETS_MAX`].
    pub fn add_set(&mut self, name: &str) -> Option<SetId> {
        self.find(name).or_else(|| {
            let place = self.names.iter().position(Option::is_none)?;
            self.names[place] = Some(name.into());
            Some(SetId(place as u8))
        })
    }

    /// Removes a set and its elements. No packet may be looked up for a rule that names it.
    ///
    /// # Errors
    /// An element could not be removed for lack of room: it remains, and so does the set.
    pub fn remove_set(&mut self, set: SetId) -> Result<(), SetError> {
        let elements: Vec<IpNet> = self.elements(set).collect();
        for net in elements {
            self.remove(set, net)?;
        }
        self.names[usize::from(set.0)] = None;
        Ok(())
    }

    /// Adds an element; returns false if it was there.
    ///
    /// # Errors
    /// There is no room; nothing has changed.
    pub fn add(&mut self, set: SetId, net: IpNet) -> Result<bool, SetError> {
        match (Ipv4Addr::prefix(&net), Ipv6Addr::prefix(&net)) {
            (Some(prefix), _) => self.ip4.add(set.0, prefix),
            (_, Some(prefix)) => self.ip6.add(set.0, prefix),
            (None, None) => Ok(false),
        }
    }

    /// Removes an element; returns false if it was absent.
    ///
    /// # Errors
    /// As [`Self::add`]: addresses within the element may be in other sets, whose routes change.
    pub fn remove(&mut self, set: SetId, net: IpNet) -> Result<bool, SetError> {
        match (Ipv4Addr::prefix(&net), Ipv6Addr::prefix(&net)) {
            (Some(prefix), _) => self.ip4.remove(set.0, prefix),
            (_, Some(prefix)) => self.ip6.remove(set.0, prefix),
            (None, None) => Ok(false),
        }
    }

    /// Iterates over the elements of a set, those of IPv4 first, in order.
    pub fn elements(&self, set: SetId) -> impl Iterator<Item = IpNet> {
        let of4 = self.ip4.elements(set.0).map(|prefix| IpNet::V4(prefix.into()));
        of4.chain(self.ip6.elements(set.0).map(|prefix| IpNet::V6(prefix.into())))
    }

    /// Returns the readers' side.
    pub fn readers(&self) -> SetReaders {
        let (ip4, ip6) = (self.ip4.members(), self.ip6.members());
        SetReaders { names: self.names.clone(), ip4, ip6 }
    }
}

impl fmt::Debug for Sets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl SetReaders {
    /// Creates readers without sets.
    pub fn none() -> Self {
        let (ip4, ip6) = (Members::none(), Members::none());
        Self { names: Vec::new(), ip4, ip6 }
    }

    /// Returns the bits of these sets; unknown sets have none.
    pub(crate) fn mask(&self, names: &[String]) -> u64 {
        let is_named = |known: &Option<Arc<str>>| {
            known.as_deref().is_some_and(|known| names.iter().any(|name| name == known))
        };
        let places = (0u64..).zip(&self.names).filter(|(_, known)| is_named(known));
        places.fold(0, |mask, (place, _)| mask | 1 << place)
    }

    /// Returns true if the address is in one of these sets.
    pub fn hold(&self, names: &[String], address: IpAddr) -> bool {
        let mut masks = [0];
        match address {
            IpAddr::V4(address) => self.ip4.find(&[address.into()], &mut masks),
            IpAddr::V6(address) => self.ip6.find(&[address.into()], &mut masks),
        }
        masks[0] & self.mask(names) != 0
    }
}

impl fmt::Debug for SetReaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names.iter().flatten()).finish()
    }
}

#[cfg(test)]
mod tests;
