//! The MACs of addresses that a step answers for, by the longest prefix.

use fib::Prefix;
use wire::MacAddr;

use super::ip_lookup::Destination;
use crate::params::{Arg, Args, Grammar, Kind, Param};

/// Prefixes with their MACs, the longest first.
pub(super) struct Macs<A: Destination>(Vec<(Prefix<A>, MacAddr)>);

impl<A: Destination> Macs<A> {
    /// The parameter `entries`, none by default, with the grammar of a family.
    pub(super) fn param(entry: &'static Grammar) -> Param {
        let entries = Param::new("entries", Kind::ParsedList(entry), "prefixes and their MACs");
        entries.or(Arg::Texts(Vec::new()))
    }

    /// Those of a step with these arguments.
    pub(super) fn of(args: &Args) -> Self {
        let entries = args.texts("entries").iter().filter_map(|text| read(text).ok());
        let mut entries: Vec<_> = entries.collect();
        entries.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Self(entries)
    }

    /// Returns the MAC of an address.
    #[inline(always)]
    pub(super) fn find(&self, address: A) -> Option<MacAddr> {
        let entry = self.0.iter().find(|(prefix, _)| prefix.contains(address));
        entry.map(|&(_, mac)| mac)
    }
}

/// Reads an entry: a prefix and a MAC.
pub(super) fn read<A: Destination>(text: &str) -> Result<(Prefix<A>, MacAddr), String> {
    let form = || format!("\"{text}\": expected PREFIX MAC");
    let (prefix, mac) = text.split_once(' ').ok_or_else(form)?;
    let prefix = A::prefix(prefix).ok_or_else(form)?;
    Ok((prefix, mac.trim().parse().map_err(|_| form())?))
}
