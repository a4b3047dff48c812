//! Arguments of the elements of an IP router.

use std::net::Ipv4Addr;

use ::click::Error;
use ::click::args::Args;
use ::click::kinds;
use ::click::names::Scope;
use ::click::text::{first_word, split_words};

use super::super::arguments;
use super::output::Path;
use super::{Own, Router, SHOWN};

/// The ICMP type "destination unreachable" (RFC 792).
pub(super) const UNREACHABLE: u8 = 3;

impl Router<'_> {
    /// An element that becomes nothing, as it is done anyway.
    pub(super) fn known(&mut self, element: usize) -> Result<(), Error> {
        let class = self.net.class(element);
        // Colours mean something to others than `PaintTee` only if there are such.
        let has_colours = !self.net.of_class(&["CheckPaint", "PaintSwitch"]).is_empty();
        if SHOWN.contains(&class) || class == "Paint" && has_colours {
            return Ok(());
        }
        self.part.quiet.insert(element, 0);
        if class == "IPInputCombo" {
            self.read(element, |args| {
                args.required("COLOR", kinds::integer(0..=255))?;
                args.optional("BADSRC", kinds::raw).map(drop)?;
                args.ignore(&["INTERFACES", "GOODDST"]);
                Ok(())
            })?;
        }
        for broadcast in self.bad_sources(element)? {
            self.own.push((element, Own::Broadcast(broadcast)));
        }
        Ok(())
    }

    /// The sources that a check of headers refuses, but for those that nobody has.
    pub(super) fn bad_sources(&self, element: usize) -> Result<Vec<Ipv4Addr>, Error> {
        let mut bad = Vec::new();
        if !matches!(self.net.class(element), "CheckIPHeader" | "CheckIPHeader2" | "IPInputCombo") {
            return Ok(bad);
        }
        for argument in &self.net.element(element).arguments {
            let (keyword, list) = first_word(argument);
            let list = if keyword == "BADSRC" { list } else { argument };
            if keyword == "GOODDST" {
                let message = "GOODDST is not supported here: packets to the router have any source but its own";
                return Err(self.net.error(element, message));
            }
            if keyword == "INTERFACES" {
                let nets = split_words(list).into_iter();
                let nets =
                    nets.filter_map(|word| arguments::net(word, &self.net.scope(element)).ok());
                bad.extend(nets.filter(|net| net.prefix_len() < 32).map(|net| net.broadcast()));
            } else if !matches!(keyword, "OFFSET" | "VERBOSE" | "DETAILS" | "CHECKSUM") {
                let words = arguments::unquoted(list);
                let words = split_words(&words).into_iter();
                bad.extend(
                    words
                        .filter_map(|word| arguments::address(word, &self.net.scope(element)).ok()),
                );
            }
        }
        Ok(bad)
    }

    /// The type and the code of an `ICMPError`, whose source must be the router.
    pub(super) fn icmp_error(&mut self, element: usize) -> Result<(u8, u8), Error> {
        let (source, kind) = self.read(element, |args| {
            let source = args.required("SRC", kinds::ip4)?;
            let kind = args.required("TYPE", icmp_type)?;
            let code = args.optional("CODE", |text: &str, _: &Scope<'_>| icmp_code(kind, text))?;
            // They are not answered anyway.
            args.optional("BADADDRS", kinds::raw)?;
            args.ignore(&["MTU", "SET_FIX_ANNO"]);
            Ok((source, (kind, code.unwrap_or(0))))
        })?;
        self.own.push((element, Own::Address(source)));
        Ok(kind)
    }

    /// Reads the arguments of an element whose work Turnpike does for packets to the router.
    pub(super) fn read_local(&self, element: usize) -> Result<(), Error> {
        let class = self.net.class(element);
        // Tunnels and classifiers have arguments that mean nothing here.
        if matches!(class, "KernelTun" | "KernelTap" | "IPClassifier" | "EtherEncap" | "Discard") {
            return Ok(());
        }
        if SHOWN.contains(&class) || class == "Null" {
            return Ok(());
        }
        self.read(element, |args| {
            if class.starts_with("ToHost") {
                args.optional("DEVNAME", kinds::raw)?;
                args.ignore(&["TYPE", "SNIFFERS"]);
            }
            if class == "IPReassembler" {
                args.ignore(&["HIMEM", "MAX_MTU_ANNO"]);
            }
            Ok(())
        })
    }

    /// Reads the arguments of an element, all of them.
    pub(super) fn read<T>(
        &self,
        element: usize,
        read: impl FnOnce(&mut Args<'_>) -> Result<T, String>,
    ) -> Result<T, Error> {
        let mut args = self.net.args(element);
        let value = read(&mut args).and_then(|value| args.finish().map(|()| value));
        value.map_err(|why| self.net.error(element, &why))
    }

    pub(super) fn querier(&mut self, element: usize, path: &mut Path) -> Result<(), Error> {
        let (address, mac) = self.read(element, |args| {
            args.ignore(&OF_QUERIERS);
            let (address, own) = args.required("IP", addresses)?;
            let mac = args.optional("ETH", arguments::mac)?.or(own);
            Ok((address, mac.ok_or("argument ETH is missing")?))
        })?;
        (path.address, path.mac) = (Some(address), Some(mac));
        Ok(())
    }

    /// The addresses of an Ethernet header in front of IP packets.
    pub(super) fn encap(&self, element: usize) -> Result<(String, String), Error> {
        self.read(element, |args| {
            args.required("ETHERTYPE", kinds::integer(0x0800..=0x0800))?;
            Ok((args.required("SRC", arguments::mac)?, args.required("DST", arguments::mac)?))
        })
    }

    /// The MAC of an element that has it as its first argument.
    pub(super) fn first_mac(&self, element: usize) -> Result<String, Error> {
        let mac = self.net.args(element).required("ETHER", arguments::mac);
        mac.map_err(|why| self.net.error(element, &why))
    }

    /// The MTU of an `IPFragmenter`.
    pub(super) fn mtu(&self, element: usize) -> Result<i64, Error> {
        self.read(element, |args| {
            let mtu = args.required("MTU", arguments::number)?;
            if args.optional("HONOR_DF", kinds::boolean)? == Some(false) {
                return Err(
                    "HONOR_DF false is not supported: RFC 791 forbids to fragment these".to_owned()
                );
            }
            args.optional("VERBOSE", kinds::boolean)?;
            args.ignore(&["HEADROOM"]);
            Ok(mtu)
        })
    }

    /// Address and MTU of an `IPOutputCombo`.
    pub(super) fn combo(&self, element: usize) -> Result<(Ipv4Addr, i64), Error> {
        self.read(element, |args| {
            args.required("COLOR", kinds::integer(0..=255))?;
            Ok((args.required("IPADDR", kinds::ip4)?, args.required("MTU", arguments::number)?))
        })
    }
}

/// The addresses of a name that has both; of an IP address, with or without a prefix length, that one only.
fn addresses(text: &str, scope: &Scope<'_>) -> Result<(Ipv4Addr, Option<String>), String> {
    let address = kinds::ip4(text, scope);
    let address = address
        .or_else(|why| arguments::net(text, scope).map(|net| net.addr()).map_err(|_| why))?;
    Ok((address, arguments::mac(text, scope).ok()))
}

/// Keywords of `ARPQuerier` whose subject is Turnpike's own business.
const OF_QUERIERS: [&str; 7] = [
    "CAPACITY",
    "ENTRY_CAPACITY",
    "ENTRY_PACKET_CAPACITY",
    "CAPACITY_SLIM_FACTOR",
    "TIMEOUT",
    "POLL_TIMEOUT",
    "BROADCAST_POLL",
];

/// ICMP types by Click's names.
const ICMP_TYPES: [(&str, u8); 5] = [
    ("unreachable", UNREACHABLE),
    ("sourcequench", 4),
    ("redirect", 5),
    ("timeexceeded", 11),
    ("parameterproblem", 12),
];

/// ICMP codes by type and Click's names.
const ICMP_CODES: [(u8, &str, u8); 23] = [
    (UNREACHABLE, "net", 0),
    (UNREACHABLE, "host", 1),
    (UNREACHABLE, "protocol", 2),
    (UNREACHABLE, "port", 3),
    (UNREACHABLE, "needfrag", 4),
    (UNREACHABLE, "srcroutefail", 5),
    (UNREACHABLE, "netunknown", 6),
    (UNREACHABLE, "hostunknown", 7),
    (UNREACHABLE, "isolated", 8),
    (UNREACHABLE, "netprohibited", 9),
    (UNREACHABLE, "hostprohibited", 10),
    (UNREACHABLE, "tosnet", 11),
    (UNREACHABLE, "toshost", 12),
    (UNREACHABLE, "filterprohibited", 13),
    (UNREACHABLE, "hostprecedence", 14),
    (UNREACHABLE, "precedencecutoff", 15),
    (5, "net", 0),
    (5, "host", 1),
    (11, "transit", 0),
    (11, "reassembly", 1),
    (12, "erroratptr", 0),
    (12, "missingopt", 1),
    (12, "length", 2),
];

fn icmp_type(text: &str, scope: &Scope<'_>) -> Result<u8, String> {
    let named = ICMP_TYPES.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    named.map_or_else(|| kinds::integer(0..=u8::MAX)(text, scope), Ok)
}

fn icmp_code(of: u8, text: &str) -> Result<u8, String> {
    let named = ICMP_CODES.iter().find(|(kind, name, _)| *kind == of && *name == text);
    let number = named.map(|(_, _, number)| *number).or_else(|| text.parse().ok());
    number.ok_or_else(|| format!("\"{text}\": expected an ICMP code of type {of}"))
}
