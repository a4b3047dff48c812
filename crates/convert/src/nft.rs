//! Rules of nftables, from `nft list ruleset` as text or as JSON.
//!
//! | nftables | here |
//! |---|---|
//! | chains of `type filter` with hook forward, input | lists of rules ([`crate::flatten`]) |
//! | chains of other types and hooks, tables of other families | left out |
//! | `ip`, `ip6`, `tcp`, `udp`, `sctp`, `dccp`, `udplite`, `th`, `icmp`, `icmpv6` fields supported by filters | conditions |
//! | sets, named and anonymous, concatenations, `vmap` | lists, and a rule for each element of a concatenation or map |
//! | `ct state` | `state`; `invalid` and `untracked` are left out |
//! | `limit`, `update @set { ip saddr limit … }` | `police`, where packets beyond the rate have a certain fate |
//! | `log`, `counter`, `comment` | `log`; every rule counts; `name` |
//! | anything else | the rule is left out |

mod json;
mod lower;
mod syntax;
mod text;

use crate::Unreadable;
use crate::rules::Ruleset;

/// Reads the rules of a listing, as JSON if it begins so.
pub fn read(input: &str) -> Result<Ruleset, Unreadable> {
    let listing = match input.trim_start().starts_with('{') {
        true => json::read(input)?,
        false => text::read(input)?,
    };
    Ok(lower::lower(&listing))
}
