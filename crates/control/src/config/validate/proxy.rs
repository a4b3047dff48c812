//! `proxy = { "192.0.2.0/24", "2001:db8::/64" }` of an interface: proxy ARP and neighbour discovery.

use ipnet::IpNet;

use super::super::network::{is_link_local, parse_prefix};
use super::super::value::Fields;
use super::lists::List;

const LIST: List<'_> = List {
    key: "proxy",
    expected: "a prefix such as \"192.0.2.0/24\", or a list of them",
    // They are searched for each request that is not for the router.
    most: (64, "prefixes", "join some"),
    with_host: "on a port with a host interface the kernel answers ARP and neighbour solicitations (sysctl \
                net.ipv4.conf.PORT.proxy_arp; ip neighbour add proxy); write host = false, or leave it out",
};

/// Reads the prefixes for whose addresses an interface answers; `has_host` is its other setting.
pub(super) fn read(fields: &mut Fields<'_, '_>, has_host: bool) -> Vec<IpNet> {
    LIST.read(fields, has_host, prefix)
}

fn prefix(text: &str) -> Result<IpNet, String> {
    let net = parse_prefix(text, "\"192.0.2.0/24\" or \"2001:db8::/64\"")?;
    if net.trunc() != net {
        return Err(format!("has host bits; write \"{}\"", net.trunc()));
    }
    let address = net.addr();
    if address.is_multicast() {
        return Err("a multicast prefix; name unicast addresses".to_owned());
    }
    if is_link_local(address) {
        return Err("link-local addresses stay on their link; name addresses that routes lead to"
            .to_owned());
    }
    Ok(net)
}
