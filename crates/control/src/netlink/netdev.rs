//! XDP features of an interface's driver, by the family `netdev` of generic netlink, which Linux has since
//! 6.3 (`Documentation/netlink/specs/netdev.yaml`).

use std::io;

use nix::errno::Errno;

use super::message::{Malformed, Messages, NLMSG_ERROR, Raw, attributes};
use super::request::Request;
use super::socket::{Received, Socket};

/// `GENL_ID_CTRL`: the family that resolves the names of the others.
const CONTROLLER: u16 = libc::GENL_ID_CTRL as u16;
const CTRL_CMD_GETFAMILY: u8 = libc::CTRL_CMD_GETFAMILY as u8;
const CTRL_ATTR_FAMILY_ID: u16 = libc::CTRL_ATTR_FAMILY_ID as u16;
const CTRL_ATTR_FAMILY_NAME: u16 = libc::CTRL_ATTR_FAMILY_NAME as u16;
// `linux/netdev.h`.
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_REDIRECT: u64 = 2;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 8;

/// Bytes of `struct genlmsghdr`.
const GENERIC_HEADER: usize = 4;

/// XDP features of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Xdp {
    /// True if programs run in the driver, before the kernel makes a socket buffer of the packet.
    pub native: bool,
    /// True if programs can redirect packets to AF_XDP sockets.
    pub redirect: bool,
    /// True if it sends frames that programs of other interfaces redirect to it.
    pub transmit: bool,
    /// True if packets go to AF_XDP sockets and from them without a copy.
    pub zero_copy: bool,
    /// Most buffers of one packet without a copy; `None` if the kernel does not report it (before
    /// 6.6).
    pub zero_copy_segments: Option<u32>,
}

/// Queries an interface of the caller's network namespace; `None` if the kernel is too old to
/// report.
///
/// # Errors
/// No such interface, or no socket.
pub fn xdp(interface: &str) -> io::Result<Option<Xdp>> {
    let index = nix::net::if_::if_nametoindex(interface)?;
    let socket = Socket::generic()?;
    socket.set_timeout(1)?;
    let name = c"netdev".to_bytes_with_nul();
    let ask = generic(CONTROLLER, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, name);
    let family = match exchange(&socket, &ask, family_of) {
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => return Ok(None),
        family => family?,
    };
    let ask = generic(family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    exchange(&socket, &ask, xdp_of).map(Some)
}

fn generic(family: u16, command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    Request::new(family, 0, 1, &[command, 1, 0, 0]).attribute(attribute, value).finish()
}

/// Sends a request and reads its answer.
fn exchange<T>(
    socket: &Socket,
    ask: &[u8],
    read: impl FnOnce(&Raw<'_>) -> Result<T, Malformed>,
) -> io::Result<T> {
    let invalid = |error: Malformed| io::Error::new(io::ErrorKind::InvalidData, error);
    socket.send(ask)?;
    let mut buffer = vec![0; 1 << 16];
    let Received::Bytes(length) = socket.receive(&mut buffer, true)? else {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer"));
    };
    let Some(message) = Messages(&buffer[..length]).next() else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an empty answer"));
    };
    let message = message.map_err(invalid)?;
    match refusal(&message) {
        Some(error) => Err(error),
        None => read(&message).map_err(invalid),
    }
}

/// Returns the error that a message reports, if any.
fn refusal(message: &Raw<'_>) -> Option<io::Error> {
    let code = (message.kind == NLMSG_ERROR).then(|| message.payload.first_chunk())??;
    Some(io::Error::from_raw_os_error(i32::from_ne_bytes(*code).saturating_neg()))
}

fn family_of(message: &Raw<'_>) -> Result<u16, Malformed> {
    let mut family = None;
    each(message, |attribute| {
        if attribute.kind == CTRL_ATTR_FAMILY_ID {
            family = Some(attribute.u16()?);
        }
        Ok(())
    })?;
    family.ok_or(Malformed::Value { kind: message.kind, what: "a family without a number" })
}

fn xdp_of(message: &Raw<'_>) -> Result<Xdp, Malformed> {
    let mut xdp = Xdp::default();
    each(message, |attribute| {
        match attribute.kind {
            NETDEV_A_DEV_XDP_FEATURES => {
                let has = attribute.u64()?;
                xdp.native = has & NETDEV_XDP_ACT_BASIC != 0;
                xdp.redirect = has & NETDEV_XDP_ACT_REDIRECT != 0;
                xdp.transmit = has & NETDEV_XDP_ACT_NDO_XMIT != 0;
                xdp.zero_copy = has & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0;
            }
            NETDEV_A_DEV_XDP_ZC_MAX_SEGS => xdp.zero_copy_segments = Some(attribute.u32()?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(xdp)
}

fn each<'a>(
    message: &Raw<'a>,
    read: impl FnMut(super::message::Attribute<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let payload = message.payload.get(GENERIC_HEADER..).unwrap_or_default();
    attributes(message.kind, payload, read)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(bytes: &[u8]) -> Raw<'_> {
        Messages(bytes).next().unwrap().unwrap()
    }

    #[test]
    fn features_are_read() {
        let answer = Request::new(30, 0, 1, &[NETDEV_CMD_DEV_GET, 1, 0, 0])
            .attribute(NETDEV_A_DEV_XDP_FEATURES, &0x2F_u64.to_ne_bytes())
            .attribute(NETDEV_A_DEV_XDP_ZC_MAX_SEGS, &17_u32.to_ne_bytes())
            .finish();
        let all = Xdp {
            native: true,
            redirect: true,
            transmit: true,
            zero_copy: true,
            zero_copy_segments: Some(17),
        };
        assert_eq!(xdp_of(&raw(&answer)), Ok(all));
        let bare = generic(30, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &[1, 0, 0, 0]);
        assert_eq!(xdp_of(&raw(&bare)), Ok(Xdp::default()));
        let short = generic(30, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_XDP_FEATURES, &[1, 0]);
        assert_eq!(xdp_of(&raw(&short)), Err(Malformed::Attribute { kind: 30, attribute: 3 }));
    }

    #[test]
    fn families_have_numbers() {
        let answer = generic(CONTROLLER, 1, CTRL_ATTR_FAMILY_ID, &29_u16.to_ne_bytes());
        assert_eq!(family_of(&raw(&answer)), Ok(29));
        let none = generic(CONTROLLER, 1, CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        assert!(matches!(family_of(&raw(&none)), Err(Malformed::Value { .. })));
    }

    #[test]
    fn errors_are_those_of_the_kernel() {
        let answer = Request::new(NLMSG_ERROR, 0, 1, &(-2_i32).to_ne_bytes()).finish();
        assert_eq!(refusal(&raw(&answer)).unwrap().raw_os_error(), Some(2));
        assert!(refusal(&raw(&generic(CONTROLLER, 1, 1, &[0; 4]))).is_none());
    }

    #[test]
    fn the_kernel_answers_for_the_loopback_only_if_it_knows_the_family() {
        // The loopback has no driver with XDP; an old kernel does not report.
        let answer = xdp("lo").unwrap();
        assert!(answer.is_none_or(|xdp| !xdp.zero_copy), "{answer:?}");
        assert_eq!(xdp("none-such").unwrap_err().raw_os_error(), Some(Errno::ENODEV as i32));
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(payload in prop::collection::vec(any::<u8>(), 0..64)) {
            let message = Raw { kind: 30, flags: 0, sequence: 1, payload: &payload };
            let _ = (xdp_of(&message), family_of(&message), refusal(&message));
        }
    }
}
