//! Names of addresses and ports: `AddressInfo(host 10.0.0.1 00:11:22:33:44:55)`, `PortInfo(control 7777)`.
//!
//! A name is known to all elements in the compound element of its declaration, and in those within. `host:ip`,
//! `host:ipnet`, `host:bcast`, `host:eth`, `host:ip6` and `host:ip6net` choose among its addresses. Devices are names
//! too; the program that runs the configuration adds them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::error::{Error, Errors};
use crate::flat::{Element, Flat};
use crate::kinds::{self, Prefix4, Prefix6};
use crate::text;

/// Addresses of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Ethernet address.
    pub ether: Option<[u8; 6]>,
    /// IPv4 address.
    pub ip4: Option<Ipv4Addr>,
    /// IPv4 address and mask.
    pub prefix4: Option<Prefix4>,
    /// IPv6 address.
    pub ip6: Option<Ipv6Addr>,
    /// IPv6 address and length of prefix.
    pub prefix6: Option<Prefix6>,
}

/// Names of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// By scope, with a slash at its end, and name.
    addresses: HashMap<(String, String), Addresses>,
    ports: HashMap<(String, String), u16>,
    elements: HashMap<String, usize>,
}

/// Names that one element may use.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'n> {
    names: &'n Names,
    /// Compound element around it, with a slash at its end.
    within: &'n str,
}

/// Ports that have a name without a declaration.
const SERVICES: &[(&str, u16)] = &[
    ("auth", 113),
    ("bootpc", 68),
    ("bootps", 67),
    ("chargen", 19),
    ("daytime", 13),
    ("discard", 9),
    ("dns", 53),
    ("domain", 53),
    ("echo", 7),
    ("finger", 79),
    ("ftp", 21),
    ("ftp-data", 20),
    ("http", 80),
    ("https", 443),
    ("imap3", 220),
    ("imaps", 993),
    ("irc", 194),
    ("netbios-dgm", 138),
    ("netbios-ns", 137),
    ("netbios-ssn", 139),
    ("nntp", 119),
    ("ntp", 123),
    ("pop3", 110),
    ("pop3s", 995),
    ("rip", 520),
    ("route", 520),
    ("smtp", 25),
    ("snmp", 161),
    ("snmp-trap", 162),
    ("ssh", 22),
    ("sunrpc", 111),
    ("telnet", 23),
    ("tftp", 69),
    ("www", 80),
];

impl Names {
    /// Names that the elements `AddressInfo` and `PortInfo` of a configuration declare.
    pub fn of(flat: &Flat) -> Result<Names, Errors> {
        let mut names = Names::default();
        let elements = flat.elements.iter().enumerate();
        names.elements = elements.map(|(index, element)| (element.name.clone(), index)).collect();
        let mut errors = Vec::new();
        for element in &flat.elements {
            match element.class.as_str() {
                "AddressInfo" => names.address_info(element, &mut errors),
                "PortInfo" => names.port_info(element, &mut errors),
                _ => {}
            }
        }
        Errors::check(errors)?;
        Ok(names)
    }

    /// Gives a name of the whole configuration addresses, a device's for instance; what is declared already stays.
    pub fn define(&mut self, name: &str, addresses: Addresses) {
        self.addresses.entry((String::new(), name.to_owned())).or_insert(addresses);
    }

    /// Names that an element may use.
    pub fn scope<'n>(&'n self, element: &'n Element) -> Scope<'n> {
        Scope { names: self, within: within(&element.name) }
    }

    fn address_info(&mut self, element: &Element, errors: &mut Vec<Error>) {
        for argument in &element.arguments {
            let words = text::split_words(argument);
            let Some((name, parts)) = words.split_first() else { continue };
            if parts.is_empty() {
                errors.push(wrong(element, argument, "expected `NAME ADDRESS`"));
            }
            let mut addresses = Addresses::default();
            for part in parts {
                let read = self.scope(element).address(part);
                match read {
                    Some(read) => addresses.add(read),
                    None => errors.push(wrong(element, part, "not an address")),
                }
            }
            let place = (within(&element.name).to_owned(), (*name).to_owned());
            self.addresses.entry(place).or_default().add(addresses);
        }
    }

    fn port_info(&mut self, element: &Element, errors: &mut Vec<Error>) {
        for argument in &element.arguments {
            let words = text::split_words(argument);
            let [name, port] = words[..] else {
                errors.push(wrong(element, argument, "expected `NAME PORT`"));
                continue;
            };
            let number = port.split('/').next().unwrap_or_default().parse();
            match number {
                Ok(number) => {
                    self.ports.insert((within(&element.name).to_owned(), name.to_owned()), number);
                }
                Err(_) => errors.push(wrong(element, port, "not a port from 0 to 65535")),
            }
        }
    }
}

fn wrong(element: &Element, text: &str, problem: &str) -> Error {
    Error::new(&element.place, format!("element \"{}\": \"{text}\": {problem}", element.name))
}

/// The compound element around a name.
fn within(name: &str) -> &str {
    name.rfind('/').map_or("", |slash| &name[..=slash])
}

impl Addresses {
    /// Adds addresses of kinds that are not there yet.
    fn add(&mut self, other: Addresses) {
        self.ether = self.ether.or(other.ether);
        self.ip4 = self.ip4.or(other.ip4);
        self.prefix4 = self.prefix4.or(other.prefix4);
        self.ip6 = self.ip6.or(other.ip6);
        self.prefix6 = self.prefix6.or(other.prefix6);
    }
}

impl<'n> Scope<'n> {
    /// Number of the element with a name, from here outwards.
    pub fn element(&self, name: &str) -> Option<usize> {
        self.outwards(|within| self.names.elements.get(&format!("{within}{name}")).copied())
    }

    /// Names of all elements.
    pub fn elements(&self) -> impl Iterator<Item = &'n str> {
        self.names.elements.keys().map(String::as_str)
    }

    /// Number of the port with a name.
    pub fn port(&self, name: &str) -> Option<u16> {
        let declared = self.outwards(|within| {
            self.names.ports.get(&(within.to_owned(), name.to_owned())).copied()
        });
        let service = || SERVICES.iter().find(|(known, _)| *known == name).map(|(_, port)| *port);
        declared.or_else(service)
    }

    pub(crate) fn ether(&self, name: &str) -> Option<[u8; 6]> {
        self.named(name, &["eth", "ether", "ethernet"])?.ether
    }

    pub(crate) fn ip4(&self, name: &str) -> Option<Ipv4Addr> {
        if let Some(net) = name.strip_suffix(":bcast") {
            let Prefix4 { address, mask } = self.prefix4(net)?;
            return Some(address | !mask);
        }
        self.named(name, &["ip", "ip4"])?.ip4
    }

    pub(crate) fn prefix4(&self, name: &str) -> Option<Prefix4> {
        self.named(name, &["ipnet", "ip4net"])?.prefix4
    }

    pub(crate) fn ip6(&self, name: &str) -> Option<Ipv6Addr> {
        self.named(name, &["ip6"])?.ip6
    }

    pub(crate) fn prefix6(&self, name: &str) -> Option<Prefix6> {
        self.named(name, &["ip6net"])?.prefix6
    }

    /// Addresses of `NAME` or `NAME:SUFFIX`.
    fn named(&self, name: &str, suffixes: &[&str]) -> Option<&'n Addresses> {
        let name = match name.rsplit_once(':') {
            Some((name, suffix)) if suffixes.contains(&suffix) => name,
            Some(_) => return None,
            None => name,
        };
        self.outwards(|within| self.names.addresses.get(&(within.to_owned(), name.to_owned())))
    }

    /// Looks in the scope itself, then in those around it.
    fn outwards<T>(&self, look: impl Fn(&str) -> Option<T>) -> Option<T> {
        let mut scope = self.within;
        loop {
            if let Some(found) = look(scope) {
                return Some(found);
            }
            if scope.is_empty() {
                return None;
            }
            scope = within(&scope[..scope.len() - 1]);
        }
    }

    /// An address of any kind.
    fn address(&self, text: &str) -> Option<Addresses> {
        let mut found = Addresses { ether: kinds::ether(text, self).ok(), ..Addresses::default() };
        found.ip4 = kinds::ip4(text, self).ok();
        if let (None, Ok(prefix)) = (found.ip4, kinds::prefix4(text, self)) {
            found.prefix4 = Some(prefix);
            let is_host = prefix.address & !prefix.mask != Ipv4Addr::UNSPECIFIED;
            found.ip4 = is_host.then_some(prefix.address);
        }
        found.ip6 = kinds::ip6(text, self).ok();
        if let (None, Ok(prefix)) = (found.ip6, kinds::prefix6(text, self)) {
            found.prefix6 = Some(prefix);
            found.ip6 = prefix.is_host().then_some(prefix.address);
        }
        (found != Addresses::default()).then_some(found)
    }
}
