//! The packets of a rule: the allowed values of each field.

use std::collections::{BTreeMap, BTreeSet};

use crate::ranges::Ranges;

/// A field of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// 4 or 6.
    Family,
    From4,
    From6,
    To4,
    To6,
    Protocol,
    FromPort,
    ToPort,
    Flags,
    Icmp4,
    Icmp6,
    /// 0 whole, 1 the first fragment, 2 a later one.
    Fragment,
    /// The type of a routing header.
    Routing,
    Dscp,
    Ttl,
    Length,
    /// Connection state: 0 new, 1 established, 2 related.
    State,
}

impl Field {
    /// Returns the largest value of the field.
    pub fn most(self) -> u128 {
        match self {
            Self::Family => 6,
            Self::From4 | Self::To4 => u32::MAX.into(),
            Self::From6 | Self::To6 => u128::MAX,
            Self::FromPort | Self::ToPort | Self::Length => u16::MAX.into(),
            Self::Protocol | Self::Flags | Self::Icmp4 | Self::Icmp6 => u8::MAX.into(),
            Self::Ttl | Self::Routing => u8::MAX.into(),
            Self::Dscp => 63,
            Self::State | Self::Fragment => 2,
        }
    }

    /// Returns true for a field of a header that not every packet has. A condition on it never matches a packet without
    /// that header, even if it allows every number.
    pub fn needs_header(self) -> bool {
        matches!(
            self,
            Self::FromPort | Self::ToPort | Self::Flags | Self::Icmp4 | Self::Icmp6 | Self::Routing
        )
    }
}

/// A set of interfaces by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// All interfaces.
    #[default]
    Any,
    /// One of these.
    In(BTreeSet<String>),
    /// None of these.
    NotIn(BTreeSet<String>),
}

impl Names {
    fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Any, names) | (names, Self::Any) => names.clone(),
            (Self::In(one), Self::In(other)) => Self::In(one & other),
            (Self::In(some), Self::NotIn(not)) | (Self::NotIn(not), Self::In(some)) => {
                Self::In(some - not)
            }
            (Self::NotIn(one), Self::NotIn(other)) => Self::NotIn(one | other),
        }
    }

    /// Returns the names in it, whether included or excluded.
    pub fn said(&self) -> impl Iterator<Item = &String> {
        let (Self::In(names) | Self::NotIn(names)) = self else {
            return None.into_iter().flatten();
        };
        Some(names.iter()).into_iter().flatten()
    }
}

/// Conditions, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    pub(crate) fields: BTreeMap<Field, Ranges>,
    /// The incoming interface.
    pub ingress: Names,
    /// The outgoing interface.
    pub egress: Names,
}

impl Match {
    /// Matches packets whose field is in this set.
    pub fn field(field: Field, set: Ranges) -> Self {
        Self { fields: [(field, set)].into(), ..Self::default() }
    }

    /// Matches packets received by these interfaces.
    pub fn by(ingress: Names) -> Self {
        Self { ingress, ..Self::default() }
    }

    /// Matches packets that leave by these interfaces.
    pub fn leaving(egress: Names) -> Self {
        Self { egress, ..Self::default() }
    }

    /// Matches packets of a family, 4 or 6.
    pub fn family(number: u8) -> Self {
        Self::field(Field::Family, Ranges::one(number.into()))
    }

    /// Matches packets of a protocol.
    pub fn protocol(number: u8) -> Self {
        Self::field(Field::Protocol, Ranges::one(number.into()))
    }

    /// Returns the intersection; `None` if it is empty.
    pub fn and(&self, other: &Self) -> Option<Self> {
        let mut both = self.clone();
        for (&field, set) in &other.fields {
            let place = both.fields.entry(field).or_insert_with(|| Ranges::all(field.most()));
            *place = place.and(set);
        }
        both.ingress = self.ingress.and(&other.ingress);
        both.egress = self.egress.and(&other.egress);
        both.can_fit().then_some(both)
    }

    fn can_fit(&self) -> bool {
        let is_none = |names: &Names| matches!(names, Names::In(some) if some.is_empty());
        let families = self.get(Field::Family);
        let protocols = self.get(Field::Protocol);
        // A field that implies a family or a protocol has it as a condition besides; both are checked here
        // again because one rule may have `icmp type` where the chain before it was entered for TCP only.
        self.fields.values().all(|set| !set.is_empty())
            && (families.has(4) || families.has(6))
            && !protocols.is_empty()
            && !is_none(&self.ingress)
            && !is_none(&self.egress)
    }

    /// Returns true if no packet can match.
    pub fn is_impossible(&self) -> bool {
        !self.can_fit()
    }

    /// Returns the allowed values of a field.
    pub fn get(&self, field: Field) -> Ranges {
        self.fields.get(&field).cloned().unwrap_or_else(|| Ranges::all(field.most()))
    }

    /// Returns the allowed values of a field, if there is a condition on it.
    pub fn condition(&self, field: Field) -> Option<&Ranges> {
        let set = self.fields.get(&field)?;
        (field.needs_header() || *set != Ranges::all(field.most())).then_some(set)
    }

    /// Replaces the set of a field.
    pub fn with(mut self, field: Field, set: Ranges) -> Self {
        self.fields.insert(field, set);
        self
    }

    /// Returns true if only packets of this family, 4 or 6, match.
    pub fn is_only(&self, family: u8) -> bool {
        let families = self.get(Field::Family);
        families.has(family.into()) && !families.has(u128::from(10 - family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_contradict_each_other_fit_no_packet() {
        let tcp = Match::protocol(6);
        let udp = Match::protocol(17);
        assert_eq!(tcp.and(&udp), None);
        assert_eq!(tcp.and(&tcp), Some(tcp.clone()));
        assert_eq!(Match::family(4).and(&Match::family(6)), None);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let from = |ingress| Match { ingress, ..Match::default() };
        let not = from(Names::NotIn(names(&["a", "b"])));
        assert_eq!(not.and(&from(Names::In(names(&["a"])))), None);
        let rest = not.and(&from(Names::In(names(&["a", "c"])))).unwrap();
        assert_eq!(rest.ingress, Names::In(names(&["c"])));
    }

    #[test]
    fn a_condition_on_any_port_stays_one() {
        let any = Match::field(Field::ToPort, Ranges::all(65535));
        assert!(any.condition(Field::ToPort).is_some());
        assert!(Match::field(Field::Dscp, Ranges::all(63)).condition(Field::Dscp).is_none());
    }
}
