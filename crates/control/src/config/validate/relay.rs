//! `dhcp_relay = { "192.0.2.7", "2001:db8::7" }` of an interface: the servers of its DHCP relay agent.

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::network::{is_link_local, not_a_host};
use super::super::value::Fields;
use super::lists::List;

const LIST: List<'_> = List {
    key: "dhcp_relay",
    expected: "the address of a server such as \"192.0.2.7\", or a list of them",
    // Each gets a copy of every message.
    most: (8, "servers", "remove some"),
    with_host: "on a port with a host interface the system's relay agents serve (dnsmasq --dhcp-relay, dhcrelay); \
                write host = false, or leave it out",
};

/// Reads the servers to which messages of clients are relayed; `has_host` is the interface's other setting.
pub(super) fn read(
    fields: &mut Fields<'_, '_>,
    addresses: &[IpNet],
    class_e: bool,
    has_host: bool,
) -> Vec<IpAddr> {
    LIST.read(fields, has_host, |text| server(text, addresses, class_e))
}

fn server(text: &str, addresses: &[IpNet], class_e: bool) -> Result<IpAddr, String> {
    let server: IpAddr = text
        .parse()
        .map_err(|_| "not an IP address; write it as \"192.0.2.7\" or \"2001:db8::7\"")?;
    if let Some(reason) = not_a_host(server, class_e) {
        return Err(format!("{reason}; name the address of a server"));
    }
    if is_link_local(server) {
        return Err(
            "a link-local address, to which no route leads; name another of the server".to_owned()
        );
    }
    if addresses.iter().any(|net| net.addr() == server) {
        return Err("the interface's own address; name the address of a server".to_owned());
    }
    let has_own = addresses.iter().any(|net| net.addr().is_ipv4());
    if server.is_ipv4() && !has_own {
        return Err(
            "the interface has no IPv4 address, by which the server knows the network; give it one"
                .to_owned(),
        );
    }
    Ok(server)
}
