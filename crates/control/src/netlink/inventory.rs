//! The interfaces of a network namespace, asked for once: what they are and what they belong to.

use std::collections::BTreeSet;
use std::io;

use super::message::{
    AF_UNSPEC, IFF_UP, IFLA_MASTER, Malformed, Messages, NLMSG_DONE, NLMSG_ERROR, RTM_GETLINK,
    RTM_NEWLINK, Raw, attributes, error_number,
};
use super::request::dump;
use super::socket::{Received, Socket};

const IFLA_IFNAME: u16 = libc::IFLA_IFNAME;
const IFLA_LINK: u16 = libc::IFLA_LINK;
const IFLA_LINKINFO: u16 = libc::IFLA_LINKINFO;
const IFLA_INFO_KIND: u16 = libc::IFLA_INFO_KIND;
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
}

/// Returns the interfaces of the caller's network namespace, by their indexes.
///
/// # Errors
/// The kernel does not answer.
pub fn interfaces() -> io::Result<Vec<Described>> {
    let invalid = |error: Malformed| io::Error::new(io::ErrorKind::InvalidData, error);
    let socket = Socket::open(0)?;
    socket.set_timeout(5)?;
    socket.send(&dump(RTM_GETLINK, AF_UNSPEC, FIXED, 1))?;
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
            IFLA_LINKINFO => attributes(message.kind, attribute.value, |info| {
                if info.kind == IFLA_INFO_KIND {
                    described.kind = Some(text(info.value));
                }
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(described)
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

    proptest! {
        #[test]
        fn no_message_makes_it_panic(payload in prop::collection::vec(any::<u8>(), 0..96)) {
            let raw = Raw { kind: RTM_NEWLINK, flags: 0, sequence: 1, payload: &payload };
            let _ = describe(&raw);
        }
    }
}
