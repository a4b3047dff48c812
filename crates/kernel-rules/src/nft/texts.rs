//! Texts of rules, and the listing that filters are made of, by the program `nft`.

use std::thread;

use serde_json::Value;

use super::{Base, ChainName, TableFamily, Tables, Texts};
use crate::programs::{self, Missing};

/// The program.
const PROGRAM: &str = "nft";

/// Listings of all rules by the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listings {
    /// The texts of rules; none without the program.
    pub texts: Texts,
    /// The listing in JSON.
    pub json: Result<String, Missing>,
}

impl Default for Listings {
    fn default() -> Self {
        Self { texts: Texts::new(), json: Err(Missing::Program(PROGRAM.to_owned())) }
    }
}

/// Asks the program, for the listing in JSON if it is wanted; both at the same time, since each takes some ten
/// milliseconds.
pub fn read(with_json: bool) -> Listings {
    let list = |form: &[&str]| programs::run(PROGRAM, &[form, &["-s", "list", "ruleset"]].concat());
    thread::scope(|scope| {
        let json = with_json.then(|| scope.spawn(|| list(&["-j"])));
        let texts = list(&["-a"]).map(|listing| parse(&listing)).unwrap_or_default();
        let json = json.and_then(|thread| thread.join().ok());
        Listings { texts, json: json.unwrap_or_else(|| Err(Missing::Program(PROGRAM.to_owned()))) }
    })
}

/// Reads the output of `nft -a list ruleset`.
pub fn parse(listing: &str) -> Texts {
    let mut texts = Texts::new();
    let mut table: Option<(TableFamily, String)> = None;
    for line in listing.lines() {
        if let Some(words) = line.strip_prefix("table ") {
            table = of_table(words);
            continue;
        }
        let (Some((family, name)), Some((text, handle))) = (&table, handle(line)) else { continue };
        // Chains and sets have handles as well, behind a brace.
        if !text.ends_with('{') {
            texts.insert((*family, name.clone(), handle), text.to_owned());
        }
    }
    texts
}

fn of_table(words: &str) -> Option<(TableFamily, String)> {
    let mut words = words.split_whitespace();
    let families = [
        TableFamily::Ip,
        TableFamily::Ip6,
        TableFamily::Inet,
        TableFamily::Arp,
        TableFamily::Bridge,
        TableFamily::Netdev,
    ];
    let family = words.next()?;
    let family = families.into_iter().find(|one| one.name() == family)?;
    Some((family, words.next()?.to_owned()))
}

/// Splits a line at the handle at its end.
fn handle(line: &str) -> Option<(&str, u64)> {
    let (text, handle) = line.rsplit_once(" # handle ")?;
    Some((text.trim(), handle.trim().parse().ok()?))
}

/// Returns the listing in JSON of the tables that these chains are in, without chains of other hooks, so that filters
/// can be made of it.
pub fn listing<'b>(
    json: &Result<String, Missing>,
    bases: impl Iterator<Item = &'b Base>,
    tables: &Tables,
) -> Result<String, Missing> {
    let wanted: Vec<&ChainName> = bases.map(|base| &base.name).collect();
    let all = json.as_ref().map_err(Clone::clone)?;
    select(all, &wanted, tables).ok_or_else(|| Missing::Unreadable(PROGRAM.into()))
}

/// Leaves out other tables, and chains attached to other hooks.
fn select(all: &str, wanted: &[&ChainName], tables: &Tables) -> Option<String> {
    let mut all: Value = serde_json::from_str(all).ok()?;
    let objects = all.get_mut("nftables")?.as_array_mut()?;
    let unwanted: Vec<&ChainName> =
        tables.bases.iter().map(|base| &base.name).filter(|name| !wanted.contains(name)).collect();
    objects.retain(|object| {
        let Some((kind, of)) = object.as_object().and_then(|object| object.iter().next()) else {
            return false;
        };
        let text = |key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default();
        let in_table =
            |name: &&ChainName| name.family.name() == text("family") && name.table == text("table");
        let chain = match kind.as_str() {
            "metainfo" | "table" => return true,
            "chain" => text("name"),
            "rule" => text("chain"),
            _ => return wanted.iter().any(&in_table),
        };
        wanted.iter().any(&in_table)
            && !unwanted.iter().any(|name| in_table(name) && name.chain == chain)
    });
    serde_json::to_string(&all).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LISTING: &str = r#"table inet filter { # handle 3
	set s { # handle 2
		type ipv4_addr
	}

	chain forward { # handle 1
		type filter hook forward priority filter; policy drop;
		ct state established accept # handle 4
		ip daddr 10.0.0.0/8 tcp dport { 22, 80 } accept comment "see # handle 9" # handle 5
	}
}
table ip6 filter { # handle 4
	chain c { # handle 1
		drop # handle 4
	}
}
"#;

    #[test]
    fn texts_are_those_of_rules() {
        let texts = parse(LISTING);
        let of =
            |family, handle| texts.get(&(family, "filter".to_owned(), handle)).map(String::as_str);
        assert_eq!(of(TableFamily::Inet, 4), Some("ct state established accept"));
        let with_comment =
            "ip daddr 10.0.0.0/8 tcp dport { 22, 80 } accept comment \"see # handle 9\"";
        assert_eq!(of(TableFamily::Inet, 5), Some(with_comment));
        assert_eq!(of(TableFamily::Ip6, 4), Some("drop"));
        assert_eq!(texts.len(), 3);
    }

    proptest! {
        #[test]
        fn no_listing_is_a_crash(text in "(table |inet |chain |\\{|\\}| # handle |[0-9]|\n|.){0,60}") {
            parse(&text);
        }
    }
}
