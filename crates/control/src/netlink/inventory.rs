//! The interfaces of a network namespace, asked for once: what they are and what they belong to.

use std::collections::BTreeSet;
use std::io;

use super::message::{
    AF_UNSPEC, IFF_UP, IFLA_MASTER, Malformed, Messages, NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR,
    RTM_GETLINK, RTM_NEWLINK, Raw, attributes, error_number,
};
use super::request::{Request, dump};
use super::socket::{Received, Socket};

const IFLA_IFNAME: u16 = libc::IFLA_IFNAME;
const IFLA_LINK: u16 = libc::IFLA_LINK;
const IFLA_LINKINFO: u16 = libc::IFLA_LINKINFO;
const IFLA_INFO_KIND: u16 = libc::IFLA_INFO_KIND;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BOND_SLAVE_STATE: u16 = 1;
const BOND_STATE_BACKUP: u8 = 1;
/// Bytes of `struct ifinfomsg`.
const FIXED: usize = 16;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// The kernel's number for it.
    pub index: u32,
    /// True if its frames are those of Ethernet.
    pub is_ethernet: bool,
    /// True if it is administratively up.
    pub is_up: bool,
    /// Its kind as in `ip link add type KIND`; `None` for most devices of hardware.
    pub kind: Option<String>,
    /// The index of the bridge, bond, VRF or other device that it belongs to.
    pub master: Option<u32>,
    /// The index of the interface that it is on: of a VLAN, MACVLAN or IPVLAN device.
    pub below: Option<u32>,
    /// True for a port of a bond by which the bond does not receive for the time being.
    pub is_spare: bool,
}

/// Returns the interfaces of the caller's network namespace, by their indexes.
///
/// # Errors
/// The kernel does not answer.
pub fn interfaces() -> io::Result<Vec<Described>> {
    ask(&dump(RTM_GETLINK, AF_UNSPEC, FIXED, 1))
}

/// Returns the interfaces that belong to a bond, bridge or VRF device with this index.
///
/// # Errors
/// The kernel does not answer.
pub fn belonging_to(master: u32) -> io::Result<Vec<Described>> {
    let request = Request::new(RTM_GETLINK, NLM_F_DUMP, 1, &[0; FIXED]);
    let mut all = ask(&request.attribute(IFLA_MASTER, &master.to_ne_bytes()).finish())?;
    // Where the kernel does not select them itself.
    all.retain(|of| of.master == Some(master));
    Ok(all)
}

/// Sends a request for interfaces and reads the answer.
fn ask(request: &[u8]) -> io::Result<Vec<Described>> {
    let invalid = |error: Malformed| io::Error::new(io::ErrorKind::InvalidData, error);
    let socket = Socket::open(0)?;
    socket.set_timeout(5)?;
    socket.send(request)?;
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    let mut buffer = vec![0; 1 << 17];
    loop {
        let Received::Bytes(length) = socket.receive(&mut buffer, true)? else {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer"));
        };
        for message in Messages(&buffer[..length]) {
            let message = message.map_err(invalid)?;
            match message.kind {
                NLMSG_DONE => return Ok(all),
                NLMSG_ERROR => {
                    let number = error_number(&message).map_err(invalid)?;
                    return Err(io::Error::from_raw_os_error(number));
                }
                RTM_NEWLINK => {
                    let interface = describe(&message).map_err(invalid)?;
                    all.extend(Some(interface).filter(|of| seen.insert(of.index)));
                }
                _ => {}
            }
        }
    }
}

fn describe(message: &Raw<'_>) -> Result<Described, Malformed> {
    let short =
        Malformed::Short { kind: message.kind, length: message.payload.len(), expected: FIXED };
    let (fixed, rest) = message.payload.split_first_chunk::<FIXED>().ok_or(short)?;
    let number = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| fixed[at + byte]));
    let mut described = Described {
        index: number(4),
        is_ethernet: u16::from_ne_bytes([fixed[2], fixed[3]]) == libc::ARPHRD_ETHER,
        is_up: number(8) & IFF_UP != 0,
        ..Described::default()
    };
    attributes(message.kind, rest, |attribute| {
        match attribute.kind {
            IFLA_IFNAME => described.name = text(attribute.value),
            IFLA_MASTER => described.master = Some(attribute.u32()?).filter(|index| *index != 0),
            IFLA_LINK => described.below = Some(attribute.u32()?).filter(|index| *index != 0),
            IFLA_LINKINFO => describe_kind(message.kind, attribute.value, &mut described)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(described)
}

/// Reads the kinds of an interface and of its place in another one.
fn describe_kind(message: u16, info: &[u8], described: &mut Described) -> Result<(), Malformed> {
    let mut place = (None, false);
    attributes(message, info, |info| {
        match info.kind {
            IFLA_INFO_KIND => described.kind = Some(text(info.value)),
            IFLA_INFO_SLAVE_KIND => place.0 = Some(text(info.value)),
            IFLA_INFO_SLAVE_DATA => attributes(message, info.value, |data| {
                place.1 |= data.kind == IFLA_BOND_SLAVE_STATE && data.value == [BOND_STATE_BACKUP];
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    described.is_spare = place.0.as_deref() == Some("bond") && place.1;
    Ok(())
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_loopback_is_up_and_has_no_ethernet() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|of| of.name == "lo").unwrap();
        assert_eq!(
            (lo.index, lo.is_ethernet, lo.master, lo.kind.as_deref()),
            (1, false, None, None)
        );
    }

    /// An attribute of attributes.
    fn nested(kind: u16, inner: &[(u16, &[u8])]) -> (u16, Vec<u8>) {
        let inner = inner
            .iter()
            .fold(Request::new(0, 0, 0, &[]), |all, (kind, value)| all.attribute(*kind, value));
        (kind, inner.finish().split_off(16))
    }

    #[test]
    fn a_port_of_a_bond_is_a_spare_or_not() {
        let of = |kind: &[u8], state: u8| {
            let data = nested(IFLA_INFO_SLAVE_DATA, &[(IFLA_BOND_SLAVE_STATE, &[state])]);
            let info = nested(IFLA_LINKINFO, &[(IFLA_INFO_SLAVE_KIND, kind), (data.0, &data.1)]);
            let bytes = Request::new(RTM_NEWLINK, 0, 1, &[0; FIXED])
                .attribute(IFLA_MASTER, &7_u32.to_ne_bytes())
                .attribute(info.0, &info.1)
                .finish();
            let message = Messages(&bytes).next().unwrap().unwrap();
            let described = describe(&message).unwrap();
            (described.master, described.is_spare)
        };
        assert_eq!(of(b"bond\0", 1), (Some(7), true));
        assert_eq!(of(b"bond\0", 0), (Some(7), false));
        assert_eq!(of(b"bridge\0", 1), (Some(7), false), "another kind's data");
    }

    proptest! {
        #[test]
        fn no_message_makes_it_panic(payload in prop::collection::vec(any::<u8>(), 0..96)) {
            let raw = Raw { kind: RTM_NEWLINK, flags: 0, sequence: 1, payload: &payload };
            let _ = describe(&raw);
        }
    }
}
