//! Routes as Click's routing tables read and write them: `ADDRESS/MASK [GATEWAY] OUTPUT`.

use std::fmt;
use std::net::Ipv4Addr;

use click::kinds;
use ipnet::Ipv4Net;

use super::with_scope;

/// A change of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Adds a route; there must be none to its prefix.
    Add,
    /// Adds it, in place of one.
    Set,
    /// Removes one.
    Remove,
}

/// A route of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The destination.
    pub prefix: Ipv4Net,
    /// The next hop; `None`: the destination itself.
    pub gateway: Option<Ipv4Addr>,
    /// The output; `None`: none of the table's.
    pub output: Option<usize>,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateway = self.gateway.map_or_else(|| "-".to_owned(), |gateway| gateway.to_string());
        let output = self.output.map_or_else(|| "-1".to_owned(), |output| output.to_string());
        write!(f, "{} {gateway} {output}", self.prefix)
    }
}

/// Reads a route; one that is to be removed needs no output.
pub fn entry(text: &str, verb: Verb) -> Result<Entry, String> {
    let form = || match verb {
        Verb::Remove => "expected 'ADDR/MASK [GATEWAY OUTPUT]'".to_owned(),
        _ => "expected 'ADDR/MASK [GATEWAY] OUTPUT'".to_owned(),
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let (prefix, gateway, output) = match words[..] {
        [prefix] if verb == Verb::Remove => (prefix, None, None),
        [prefix, output] => (prefix, None, Some(output)),
        [prefix, gateway, output] => (prefix, Some(gateway), Some(output)),
        _ => return Err(form()),
    };
    let output = output.map(str::parse).transpose().map_err(|_| form())?;
    with_scope(|scope| {
        let read = kinds::prefix4(prefix, scope)
            .ok()
            .and_then(|read| Some((read.address, read.length()?)));
        let read = read.or_else(|| kinds::ip4(prefix, scope).ok().map(|address| (address, 32)));
        let (address, length) = read.ok_or_else(form)?;
        let prefix = Ipv4Net::new(address, length).map_err(|_| form())?.trunc();
        let gateway = match gateway {
            None | Some("-") => None,
            Some(text) => Some(kinds::ip4(text, scope).map_err(|_| form())?),
        };
        let gateway = gateway.filter(|gateway| !gateway.is_unspecified());
        Ok(Entry { prefix, gateway, output })
    })
}

/// Changes the routes of a table with so many outputs: all, or none.
///
/// # Errors
/// Click's answer to the first change that cannot be made.
pub fn change(
    table: &[Entry],
    outputs: usize,
    verb: Option<Verb>,
    text: &str,
) -> Result<Vec<Entry>, String> {
    let mut table = table.to_vec();
    match verb {
        Some(verb) => one(&mut table, outputs, verb, text)?,
        None => {
            for line in text.lines() {
                let line = line.trim();
                let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
                let verb = match word {
                    "" => continue,
                    "add" => Verb::Add,
                    "set" => Verb::Set,
                    "remove" => Verb::Remove,
                    other => return Err(format!("bad command '{other}'")),
                };
                one(&mut table, outputs, verb, rest)?;
            }
        }
    }
    Ok(table)
}

fn one(table: &mut Vec<Entry>, outputs: usize, verb: Verb, text: &str) -> Result<(), String> {
    let entry = entry(text, verb)?;
    if entry.output.is_some_and(|output| output >= outputs) {
        return Err("bad OUTPUT".to_owned());
    }
    let known = table.iter().position(|known| known.prefix == entry.prefix);
    match (verb, known) {
        (Verb::Add, Some(at)) => Err(format!("conflict with existing route '{}'", table[at])),
        (Verb::Set, Some(at)) => {
            table[at] = entry;
            Ok(())
        }
        (Verb::Add | Verb::Set, None) => {
            table.push(entry);
            Ok(())
        }
        (Verb::Remove, Some(at)) => {
            let is_meant = entry.output.is_none_or(|_| {
                (entry.gateway, entry.output) == (table[at].gateway, table[at].output)
            });
            if !is_meant {
                return Err(format!("route '{entry}' not found"));
            }
            table.remove(at);
            Ok(())
        }
        (Verb::Remove, None) => Err(format!("route '{entry}' not found")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(table: &[Entry]) -> Vec<String> {
        table.iter().map(ToString::to_string).collect()
    }

    fn table() -> Vec<Entry> {
        ["10.0.0.0/8 1", "0/0 10.0.0.1 2"].map(|text| entry(text, Verb::Add).unwrap()).to_vec()
    }

    #[test]
    fn routes_are_written_as_click_does() {
        assert_eq!(texts(&table()), ["10.0.0.0/8 - 1", "0.0.0.0/0 10.0.0.1 2"]);
        for (text, expected) in [
            ("1.2.3.4 0", "1.2.3.4/32 - 0"),
            ("18.26.4.9/255.255.255.0 - 3", "18.26.4.0/24 - 3"),
            ("10/8 0.0.0.0 0", "10.0.0.0/8 - 0"),
        ] {
            assert_eq!(entry(text, Verb::Add).unwrap().to_string(), expected);
        }
        for wrong in
            ["", "10/8", "10/8 x", "10/8 x 1", "x 1", "10/33 1", "10/8 1.1.1.1 1 1", "10/8 -1"]
        {
            assert_eq!(
                entry(wrong, Verb::Add).unwrap_err(),
                "expected 'ADDR/MASK [GATEWAY] OUTPUT'",
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_change_is_made_whole_or_not() {
        let changed = |verb, text: &str| change(&table(), 3, verb, text).map(|table| texts(&table));
        let add = Some(Verb::Add);
        assert_eq!(changed(add, "11.0.0.0/8 1").unwrap()[2], "11.0.0.0/8 - 1");
        assert_eq!(
            changed(add, "10.0.0.0/8 2").unwrap_err(),
            "conflict with existing route '10.0.0.0/8 - 1'"
        );
        assert_eq!(changed(add, "11.0.0.0/8 3").unwrap_err(), "bad OUTPUT");
        assert_eq!(changed(Some(Verb::Set), "10.0.0.0/8 2").unwrap()[0], "10.0.0.0/8 - 2");
        assert_eq!(changed(Some(Verb::Remove), "10.0.0.0/8").unwrap().len(), 1);
        assert_eq!(changed(Some(Verb::Remove), "10.0.0.0/8 1").unwrap().len(), 1);
        assert_eq!(
            changed(Some(Verb::Remove), "10.0.0.0/8 2").unwrap_err(),
            "route '10.0.0.0/8 - 2' not found"
        );
        let lines = "remove 10.0.0.0/8\n\n add 10.0.0.0/8 0\nset 12.0.0.0/8 - 2\n";
        assert_eq!(
            changed(None, lines).unwrap(),
            ["0.0.0.0/0 10.0.0.1 2", "10.0.0.0/8 - 0", "12.0.0.0/8 - 2"]
        );
        assert_eq!(changed(None, "remove 0/0\ndrop 10.0.0.0/8").unwrap_err(), "bad command 'drop'");
    }
}
