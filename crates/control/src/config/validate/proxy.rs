//! `proxy = { "192.0.2.0/24", "2001:db8::/64" }` of an interface: proxy ARP and neighbour discovery.

use ipnet::IpNet;

use super::super::network::{is_link_local, parse_prefix};
use super::super::value::Fields;

const KEY: &str = "proxy";

/// Most prefixes of an interface: they are searched for each request that is not for the router.
const PREFIXES_MOST: usize = 64;

/// Reads the prefixes for whose addresses an interface answers; `has_host` is its other setting.
pub(super) fn read(fields: &mut Fields<'_, '_>, has_host: bool) -> Vec<IpNet> {
    let mut nets = Vec::new();
    for text in fields.texts(KEY, "a prefix such as \"192.0.2.0/24\", or a list of them") {
        match prefix(text) {
            Ok(net) if nets.contains(&net) => {
                fields.error(KEY, format!("{KEY}: \"{text}\" given twice; remove one"));
            }
            Ok(net) => nets.push(net),
            Err(reason) => fields.error(KEY, format!("{KEY}: \"{text}\": {reason}")),
        }
    }
    if nets.len() > PREFIXES_MOST {
        let message =
            format!("{KEY}: {} prefixes, {PREFIXES_MOST} is the most; join some", nets.len());
        fields.error(KEY, message);
    }
    if has_host && !nets.is_empty() {
        fields.error(
            KEY,
            "proxy: on a port with a host interface the kernel answers ARP and neighbour solicitations (sysctl \
             net.ipv4.conf.PORT.proxy_arp; ip neighbour add proxy); write host = false, or leave it out",
        );
    }
    nets
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
