//! Duplicate address detection: RFC 4862, 5.4, for interfaces configured with it.
//!
//! ```text
//!   link up, new addresses --> tentative -- no reply to the last solicitation --> used, announced
//!                                  |
//!                                  +-- another host advertises or solicits it --> never used
//! ```
//!
//! The groups of a tentative address are joined, and solicitations for it are processed; it is neither
//! source nor destination of packets. The first solicitation has a random delay of up to a second, so
//! that routers which start together do not solicit together (5.4.2). The router's own solicitation,
//! brought back by a loop, is no sign of a duplicate (5.4.3). A duplicate address stays unused until
//! the link or the addresses change ([`Event::AddressDuplicate`]).
//!
//! On an interface with a host interface the kernel does this.

use std::net::Ipv6Addr;
use std::time::Duration;

use dataplane::interface::InterfaceId;
use wire::MacAddr;
use wire::address::solicited_node;
use wire::build;
use wire::icmp::v6;
use wire::nd::NeighbourSolicitation;
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32};

use crate::advertise::Advertising;
use crate::context::LinkContext;
use crate::interfaces::Interface;
use crate::{Event, Output, Time, nd};

/// RFC 4861, 10: MAX_RTR_SOLICITATION_DELAY, which RFC 4862, 5.4.2 uses, and RETRANS_TIMER.
const DELAY_MOST: Duration = Duration::from_secs(1);
const BETWEEN: Duration = Duration::from_secs(1);

/// An address under detection.
struct Probe {
    interface: InterfaceId,
    address: Ipv6Addr,
    next: Time,
    /// Solicitations still to be sent.
    left: u8,
}

/// All addresses under detection.
#[derive(Default)]
pub(crate) struct Probes(Vec<Probe>);

impl Probes {
    /// Takes those of some interfaces out.
    pub(crate) fn part(&mut self, is_in: &impl Fn(InterfaceId) -> bool) -> Self {
        Self(self.0.extract_if(.., |of| is_in(of.interface)).collect())
    }

    /// Adds those of other interfaces.
    pub(crate) fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.0.iter().map(|probe| probe.next).min()
    }

    pub(crate) fn cancel(&mut self, interface: InterfaceId) {
        self.0.retain(|probe| probe.interface != interface);
    }

    /// Makes all IPv6 addresses of an interface tentative, if it is configured with duplicate address detection.
    pub(crate) fn start<O>(&mut self, id: InterfaceId, link: &mut LinkContext<'_, O>) {
        self.cancel(id);
        let Some(interface) = link.interfaces.get_mut(id) else { return };
        let left = interface.settings.dad;
        let detects = !interface.host && left > 0;
        for &address in interface.set_tentative(detects) {
            let next = link.now.saturating_add(link.random.up_to(DELAY_MOST));
            self.0.push(Probe { interface: id, address, next, left });
        }
    }

    /// Sends the solicitations that are due; unique addresses are used from now on.
    pub(crate) fn run<P>(
        &mut self,
        advertising: &mut Advertising,
        link: &mut LinkContext<'_, impl Output<P>>,
    ) {
        while let Some((id, address, ask)) = self.due(link.now) {
            let Some(interface) = link.interfaces.get_mut(id) else { continue };
            if ask {
                link.out.originate(id, &question(interface.mac, address));
                continue;
            }
            interface.confirm(address);
            nd::announce(interface, address, link.out);
            if address == interface.link_local {
                advertising.start(interface, link.now);
            }
        }
    }

    /// Returns an address that is due, and true if another solicitation is to be sent; false: the
    /// address is unique.
    fn due(&mut self, now: Time) -> Option<(InterfaceId, Ipv6Addr, bool)> {
        let index = self.0.iter().position(|probe| probe.next <= now)?;
        let probe = &mut self.0[index];
        let found = (probe.interface, probe.address, probe.left > 0);
        if probe.left > 0 {
            probe.left -= 1;
            probe.next = now.saturating_add(BETWEEN);
        } else {
            self.0.remove(index);
        }
        Some(found)
    }

    /// Handles another host's use of a tentative address, which therefore stays tentative.
    pub(crate) fn duplicate<P>(
        &mut self,
        interface: &Interface,
        address: Ipv6Addr,
        mac: MacAddr,
        out: &mut impl Output<P>,
    ) {
        if interface.mac == mac {
            return;
        }
        let asked = self.0.len();
        self.0.retain(|probe| (probe.interface, probe.address) != (interface.id, address));
        // Reported once.
        if self.0.len() < asked {
            out.event(Event::AddressDuplicate { interface: interface.id, address, mac });
        }
    }
}

/// Builds a solicitation from the unspecified address, without a link-layer address (RFC 4862, 5.4.2).
fn question(mac: MacAddr, address: Ipv6Addr) -> Vec<u8> {
    let fixed = NeighbourSolicitation {
        kind: v6::NEIGHBOUR_SOLICITATION,
        code: 0,
        checksum: U16::new(0),
        reserved: U32::new(0),
        target_address: address.octets(),
    };
    let message = fixed.as_bytes().to_vec();
    build::neighbour_discovery(mac, Ipv6Addr::UNSPECIFIED, solicited_node(address), message)
}

#[cfg(test)]
mod tests {
    use dataplane::reason::{DropReason, PuntReason};
    use wire::build::Link;
    use wire::nd::FLAG_OVERRIDE;

    use super::*;
    use crate::testing::{
        A, B, Bench, GLEAN_LEFT, L, LEFT, Out, config, fix_icmpv6_checksum, hex, icmp_type,
        originated, right, secs, udp, v6,
    };
    use crate::{Advertise, Command};

    /// The left interface sends two solicitations for each of its addresses fd00:1::1 and
    /// fe80::ff:fe00:1.
    fn bench() -> Bench {
        let mut config = config();
        config.interfaces[0].settings.dad = 2;
        config.interfaces[0].settings.advertise = Some(Advertise::default());
        Bench::with(config)
    }

    fn own() -> Ipv6Addr {
        "fd00:1::1".parse().unwrap()
    }

    fn ping() -> Vec<u8> {
        let mut ping = v6("fd00:1::2", "fd00:1::1", 58, &[128, 0, 0, 0, 0, 1, 0, 1]);
        fix_icmpv6_checksum(&mut ping, 54);
        ping
    }

    /// Types of the ICMPv6 messages that the router made.
    fn types(outs: &[Out]) -> Vec<u8> {
        originated(outs).iter().filter(|f| f.len() > 54).map(|f| icmp_type(f).0).collect()
    }

    fn advertisement(mac: MacAddr) -> Vec<u8> {
        let link = Link { destination: L, source: mac };
        let all: Ipv6Addr = "ff02::1".parse().unwrap();
        build::neighbour_advertisement(link, own(), all, own(), FLAG_OVERRIDE)
    }

    #[test]
    fn a_question_byte_by_byte() {
        let want = hex("3333ff000001 020000000001 86dd 6000000000183aff
            00000000000000000000000000000000 ff0200000000000000000001ff000001
            8700 0000 00000000 fd000001000000000000000000000001");
        let mut want = want;
        fix_icmpv6_checksum(&mut want, 54);
        assert_eq!(question(L, own()), want);
    }

    #[test]
    fn an_address_is_used_when_nobody_has_it() {
        let mut bench = bench();
        assert_eq!(bench.local(ping()), [Out::Drop(DropReason::NotLocal)]);
        // Two solicitations for each address, one second apart; no advertisement while there is no
        // address to send it from.
        let outs = bench.pass(Duration::from_millis(1999));
        assert_eq!(types(&outs), [135; 4]);
        assert_eq!(bench.local(ping()), [Out::Drop(DropReason::NotLocal)]);
        let outs = bench.pass(Duration::from_millis(1001));
        let told = types(&outs);
        assert_eq!(told.iter().filter(|&&kind| kind == 136).count(), 2, "both are announced");
        assert_eq!(told.iter().filter(|&&kind| kind == 134).count(), 1);
        let outs = bench.local(ping());
        assert!(matches!(outs[..], [Out::Originate(..), Out::ToHost(_)]), "{outs:?}");
    }

    #[test]
    fn an_address_that_somebody_has_is_never_used() {
        let probe = question(A, own());
        for theirs in [advertisement(A), probe] {
            let mut bench = bench();
            let outs = bench.local(theirs.clone());
            let duplicate = Event::AddressDuplicate { interface: LEFT, address: own(), mac: A };
            assert_eq!(outs, [Out::Event(duplicate), Out::ToHost(theirs.clone())]);
            assert!(matches!(bench.local(theirs)[..], [Out::ToHost(_)]), "said once");
            bench.pass(secs(60));
            assert_eq!(bench.local(ping()), [Out::Drop(DropReason::NotLocal)]);
            // The link-local address is the interface's source now.
            let packet = v6("fd00:2::2", "fd00:1::2", 17, &udp(8));
            let outs = bench.punt(PuntReason::Glean, right(), GLEAN_LEFT, packet);
            assert_eq!(originated(&outs)[0][22..24], [0xfe, 0x80]);
            // Detection starts again with the link.
            let address = std::net::IpAddr::V6("fd00:1::2".parse().unwrap());
            bench.command(Command::AddStaticNeighbour { interface: LEFT, address, mac: B });
            bench.command(Command::PortLink { interface: LEFT, up: true });
            bench.pass(secs(5));
            assert_eq!(originated(&bench.local(ping())).len(), 1);
        }
    }

    #[test]
    fn what_says_nothing_of_anybody_else_does_not_matter() {
        let mut bench = bench();
        // Our own solicitation, by a loop; a host that resolves the address.
        assert!(matches!(bench.local(question(L, own()))[..], [Out::ToHost(_)]));
        let from = "fd00:1::2".parse().unwrap();
        let asked = build::neighbour_solicitation(B, from, own(), None);
        assert!(matches!(bench.local(asked)[..], [Out::ToHost(_)]), "and is not answered");
        bench.pass(secs(5));
        assert_eq!(originated(&bench.local(ping())).len(), 1);
    }

    #[test]
    fn nothing_is_sent_from_an_address_that_is_not_known_to_be_ours() {
        let mut bench = bench();
        let packet = v6("fd00:2::2", "fd00:1::2", 17, &udp(8));
        let outs = bench.punt(PuntReason::Glean, right(), GLEAN_LEFT, packet);
        assert_eq!(originated(&outs), [] as [&[u8]; 0]);
        // The neighbour is solicited as soon as there is a source address.
        let outs = bench.pass(secs(3));
        let asked = |f: &&[u8]| f.len() > 54 && f[54] == 135 && f[22] != 0;
        assert!(originated(&outs).iter().any(asked), "{outs:?}");
    }
}
