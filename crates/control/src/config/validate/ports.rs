//! `turnpike.port "NAME" { … }`

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::features::Feature;
use dataplane::interface::VrfId;
use dataplane::port::{MAX_PORTS, PortId};
use dataplane::steps::REDIRECTS;
use ipnet::IpNet;
use slowpath::InterfaceSettings;
use wire::MacAddr;

use super::super::network::{
    Connected, is_link_local, names_the_network, not_a_host, parse_prefix,
};
use super::super::script::Statement;
use super::super::value::{Fields, Value};
use super::super::{Device, Driver, HostInterface, Interface, LOOPBACK, Port, PortFilter};
use super::accelerate::{self, ACCELERATE};
use super::{
    Context, NAME_RULE, advertise, discovery, filters, host, is_name, link, offloads, proxy,
    queues, relay, transmit,
    vrfs::{self, Vrfs},
};

const KNOWN: [&str; 38] = [
    "device",
    ACCELERATE,
    "driver",
    "take_over",
    "vrf",
    "address",
    "unnumbered",
    "mac",
    "mtu",
    "link",
    "promiscuous",
    "all_multicast",
    "rx_queues",
    "tx_queues",
    "rx_descriptors",
    "tx_descriptors",
    "rx_burst",
    "quota",
    "wait",
    "rx_thresholds",
    "tx_thresholds",
    "rx_cores",
    "tx_cores",
    "rss",
    "spread",
    "control_queue",
    "queue",
    "shape",
    "offloads",
    "host",
    "filter",
    "unreachables",
    "ttl_security",
    "dad",
    "proxy",
    "dhcp_relay",
    "advertise",
    "router_discovery",
];

/// Longest name of an interface in Linux, which applies to our ports as well.
pub(super) const NAME_MOST: usize = 15;

/// Smallest MTU of every IPv4 link (RFC 791 3.2); that of IPv6 links is 1280 (RFC 8200 5).
const MTU_LEAST: u64 = 68;
const MTU_LEAST_IPV6: u64 = 1280;
/// A jumbo frame, as large as common network adapters support.
const MTU_MOST: u64 = 9216;

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    host_by_default: bool,
    features: &[Feature],
    filters: &[&str],
) -> Vec<Port> {
    let features: Vec<_> = features.iter().copied().filter(|of| of.is_setting()).collect();
    let known: Vec<&str> =
        KNOWN.into_iter().chain(features.iter().map(|feature| feature.name())).collect();
    let mut ports: Vec<Port> = Vec::new();
    let mut devices: HashMap<Device, (String, usize)> = HashMap::new();
    for statement in statements {
        check_name(context, what(&statement.name), statement);
        let index = context.port_names.len();
        context.port_names.push((statement.name.clone(), statement.line));
        let common = Common::of(context, filters);
        let mut fields = context.fields(what(&statement.name), statement, &known);
        let device_is_host = accelerate::host(&mut fields);
        let accelerate = device_is_host.is_some();
        let host = device_is_host.or_else(|| host::read(&mut fields, host_by_default));
        let (mut interface, mtu) = interface(&mut fields, &common, &features, host);
        let address_line = fields.line_of("address");
        let device = device(&mut fields, &mut devices, statement);
        if accelerate {
            accelerate::check_name(&mut fields, &statement.name, &device);
            // The kernel sends them, as its sysctls say.
            redirect(&mut interface);
        }
        let port = Port {
            // Too many ports are refused below.
            id: u16::try_from(index).ok().and_then(PortId::new).unwrap_or(PortId::FIRST),
            line: statement.line,
            name: statement.name.clone(),
            driver: driver(&mut fields, &device),
            accelerate,
            // Set with all settings of acceleration.
            in_kernel: false,
            device,
            mac: mac(&mut fields),
            mtu,
            queues: queues::read(&mut fields),
            offloads: offloads::read(&mut fields),
            link: link::read(&mut fields),
            take_over: fields.flag("take_over"),
            promiscuous: fields.flag("promiscuous"),
            all_multicast: fields.flag("all_multicast"),
            bond: None,
            interface,
        };
        enter(context, index, &port.interface, address_line);
        ports.push(port);
    }
    let count = ports.len();
    if count == 0 {
        let message = "no port: a router needs at least one; write turnpike.port \"left\" \
                       { device = \"eth0\", address = \"10.0.1.1/24\" }";
        // A script that did not run to its end is already reported.
        if context.errors.is_empty() {
            context.errors.add(None, message);
        }
    } else if count > MAX_PORTS {
        let line = ports.get(MAX_PORTS).map(|port| port.line);
        context.errors.add(line, format!("{count} ports, {MAX_PORTS} is the most; remove some"));
    }
    context.ports = count;
    context.any_host = ports.iter().any(|port| port.interface.host.is_some());
    ports
}

/// Has packets that leave by their ingress interface looked at by the slow path.
fn redirect(interface: &mut Interface) {
    interface.settings.redirects = true;
    let of_redirects = interface.features.iter_mut().filter(|(of, _)| *of == REDIRECTS);
    of_redirects.for_each(|(_, value)| *value = 1);
}

/// State that the readers of interfaces need.
pub(super) struct Common<'a> {
    class_e: bool,
    vrfs: Arc<Vrfs>,
    /// Names of all filters.
    filters: &'a [&'a str],
}

impl<'a> Common<'a> {
    pub(super) fn of(context: &Context<'_>, filters: &'a [&'a str]) -> Self {
        Self { class_e: context.class_e, vrfs: context.vrfs.clone(), filters }
    }
}

/// Keys of the settings of an interface, besides those of features.
pub(super) const INTERFACE_KEYS: [&str; 15] = [
    "vrf",
    "address",
    "unnumbered",
    "mtu",
    "host",
    "queue",
    "shape",
    "filter",
    "unreachables",
    "ttl_security",
    "dad",
    "proxy",
    "dhcp_relay",
    "advertise",
    "router_discovery",
];

/// Reads the settings of an interface with this host interface; returns them and the MTU.
pub(super) fn interface(
    fields: &mut Fields<'_, '_>,
    common: &Common<'_>,
    features: &[Feature],
    host: Option<HostInterface>,
) -> (Interface, Option<u16>) {
    let addresses = addresses(fields, common.class_e);
    let mtu = mtu(fields, &addresses);
    let (filter_in, filter_out) = filters_of(fields, common.filters);
    let features: Vec<_> = features.iter().map(|&of| (of, feature(fields, of))).collect();
    let vrf = vrfs::named(fields, "vrf", &common.vrfs).unwrap_or(VrfId::DEFAULT);
    let host = host.map(|host| host::place_in_vrf(fields, host, vrf, &common.vrfs));
    let settings = InterfaceSettings {
        vrf,
        unreachables: fields.flag_or("unreachables", true),
        redirects: features.iter().any(|&(of, value)| of == REDIRECTS && value != 0),
        dad: fields.number("dad", 0..=10).unwrap_or(0) as u8,
        proxy: proxy::read(fields, host.is_some()),
        relay: relay::read(fields, &addresses, common.class_e, host.is_some()),
        advertise: advertise::read(fields, &addresses, mtu, host.is_some()),
        discovery: discovery::read(fields, &addresses, host.is_some()),
    };
    let unnumbered = fields.text("unnumbered", "the name of a loopback").map(str::to_owned);
    let interface = Interface {
        settings,
        unnumbered,
        features,
        filter_in,
        filter_out,
        has_vlans: false,
        is_mirrored: false,
        is_sampled: false,
        is_translated: false,
        is_bonded: false,
        host,
        ttl_security: fields.number("ttl_security", 1..=254).map(|hops| hops as u8),
        queue: transmit::queue(fields),
        shape: transmit::shape(fields, mtu),
        addresses,
    };
    (interface, mtu)
}

/// Records the VRF and the addresses of the interface at this position.
pub(super) fn enter(context: &mut Context<'_>, port: usize, interface: &Interface, line: usize) {
    let vrf = interface.settings.vrf;
    context.port_vrfs.push(vrf);
    for &net in &interface.addresses {
        connect(context, Connected { port, vrf, line, net });
    }
}

fn what(name: &str) -> String {
    format!("port \"{name}\"")
}

pub(super) fn check_name(context: &mut Context<'_>, what: String, statement: &Statement) {
    let name = &statement.name;
    let mut error = |message: String| {
        context.errors.add(Some(statement.line), format!("{what}: {message}"));
    };
    let length = name.chars().count();
    if length > NAME_MOST {
        error(format!(
            "the name has {length} characters, {NAME_MOST} is the most (the kernel's interface of \
             the port has the same name); shorten it"
        ));
    } else if !is_name(name) {
        error(format!("not a name; {NAME_RULE}"));
    }
    if let Some((_, line)) = context.port_names.iter().find(|(other, _)| other == name) {
        error(format!("the name is taken by the port on line {line}; give each port its own"));
    }
}

fn device(
    fields: &mut Fields<'_, '_>,
    devices: &mut HashMap<Device, (String, usize)>,
    statement: &Statement,
) -> Device {
    const FORMS: &str = "\"eth0\" (a kernel interface), \"0000:03:00.0\" (a PCI address) or \
                         \"net_tap0,iface=tap0\" (a DPDK device)";
    let nothing = Device::Kernel(String::new());
    if fields.get("device").is_none() {
        fields.error("", format!("device missing; write device = {FORMS}"));
        return nothing;
    }
    let Some(text) = fields.text("device", "a device's name") else { return nothing };
    let device = match parse_device(text) {
        Ok(device) => device,
        Err(reason) => {
            fields.error("device", format!("device \"{text}\": {reason}; write {FORMS}"));
            return nothing;
        }
    };
    if let Some((port, line)) = devices.get(&device) {
        fields.error(
            "device",
            format!("device \"{text}\" is taken by port \"{port}\" on line {line}; a device makes one port"),
        );
    } else {
        devices.insert(device.clone(), (statement.name.clone(), fields.line_of("device")));
    }
    device
}

/// Distinguishes the three kinds of device.
fn parse_device(text: &str) -> Result<Device, String> {
    if let Some(pci) = parse_pci(text) {
        return Ok(Device::Pci(pci));
    }
    if text.starts_with("net_") || text.starts_with("virtio_user") || text.contains(',') {
        return Ok(Device::Vdev(text.to_owned()));
    }
    if text.is_empty() {
        return Err("empty".to_owned());
    }
    if text.len() > NAME_MOST {
        return Err(format!("{} characters, an interface has at most {NAME_MOST}", text.len()));
    }
    if text.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
        return Err("not a device's name".to_owned());
    }
    Ok(Device::Kernel(text.to_owned()))
}

/// Parses `[DOMAIN:]BUS:DEVICE.FUNCTION` in hexadecimal, and adds a missing domain.
fn parse_pci(text: &str) -> Option<String> {
    let hex = |part: &str, digits: usize| {
        let fits = part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
        fits.then(|| part.to_ascii_lowercase())
    };
    let parts: Vec<&str> = text.split(':').collect();
    let (domain, bus, rest) = match parts[..] {
        [bus, rest] => ("0000", bus, rest),
        [domain, bus, rest] => (domain, bus, rest),
        _ => return None,
    };
    let (device, function) = rest.split_once('.')?;
    Some(format!("{}:{}:{}.{}", hex(domain, 4)?, hex(bus, 2)?, hex(device, 2)?, hex(function, 1)?))
}

fn driver(fields: &mut Fields<'_, '_>, device: &Device) -> Option<Driver> {
    let text = fields.text("driver", "a driver's name such as \"vfio-pci\"")?;
    let Some(driver) = Driver::ALL.into_iter().find(|driver| driver.name() == text) else {
        let known = Driver::ALL.map(Driver::name).join(", ");
        fields.error(
            "driver",
            format!(
                "driver \"{text}\" unknown; known: {known}; leave it out for the best that works"
            ),
        );
        return None;
    };
    match device {
        Device::Vdev(_) if driver.is_pci() => fields.error(
            "driver",
            format!(
                "driver \"{text}\" is for PCI NICs, and {device} is a virtual device; leave it out"
            ),
        ),
        Device::Pci(_) if !driver.is_pci() => fields.error(
            "driver",
            format!(
                "driver \"{text}\" is for kernel interfaces, and {device} is a PCI address; write \
                 \"vfio-pci\" or \"uio_pci_generic\", or leave it out"
            ),
        ),
        _ => {}
    }
    Some(driver)
}

/// Reads the filters of an interface:
/// `filter = { inward = "edge-in", outward = "edge-out", hardware = true }`, or the name of one for inward.
fn filters_of(
    fields: &mut Fields<'_, '_>,
    names: &[&str],
) -> (Option<PortFilter>, Option<PortFilter>) {
    if let Some(Value::Text(_)) = fields.get("filter") {
        return (filters::of_port(fields, "filter", names), None);
    }
    const KEYS: &[&str] = &["inward", "outward", "hardware"];
    let Some(mut of) = fields.table("filter", KEYS) else { return (None, None) };
    let mut inward = filters::of_port(&mut of, "inward", names);
    let hardware = of.flag("hardware");
    match &mut inward {
        Some(filter) => filter.hardware = hardware,
        None if hardware && of.get("inward").is_none() => {
            let message = "hardware: a device holds rules of an inward filter, and the port has none; write \
                           inward = \"NAME\", or leave hardware out";
            of.error("hardware", message);
        }
        None => {}
    }
    (inward, filters::of_port(&mut of, "outward", names))
}

fn feature(fields: &mut Fields<'_, '_>, feature: Feature) -> u8 {
    let name = feature.name();
    let [_, words @ ..] = feature.words() else { return fields.flag(name).into() };
    let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let Some(word) = fields.text(name, &quoted.join(" or ")) else { return 0 };
    feature.value(word).filter(|&value| value > 0).unwrap_or_else(|| {
        let (known, off) = (words.join(", "), feature.word(0));
        fields.error(
            name,
            format!("{name} \"{word}\" unknown; known: {known}; leave it out for \"{off}\""),
        );
        0
    })
}

pub(super) fn mac(fields: &mut Fields<'_, '_>) -> Option<MacAddr> {
    let text = fields.text("mac", "a MAC address")?;
    match text.parse::<MacAddr>() {
        Ok(mac) if mac.is_multicast() || mac == MacAddr::default() => {
            fields.error(
                "mac",
                format!("mac \"{text}\" is not a unicast address; the first byte is even, as in 02:00:00:00:00:01"),
            );
            None
        }
        Ok(mac) => Some(mac),
        Err(error) => {
            fields.error("mac", format!("mac \"{text}\": {error}"));
            None
        }
    }
}

fn mtu(fields: &mut Fields<'_, '_>, addresses: &[IpNet]) -> Option<u16> {
    let mtu = fields.number("mtu", MTU_LEAST..=MTU_MOST)?;
    if mtu < MTU_LEAST_IPV6 && addresses.iter().any(|net| net.addr().is_ipv6()) {
        fields.error(
            "mtu",
            format!(
                "mtu {mtu}: a port with IPv6 addresses needs {MTU_LEAST_IPV6} or more (RFC 8200 5)"
            ),
        );
    }
    Some(mtu as u16)
}

pub(super) fn addresses(fields: &mut Fields<'_, '_>, class_e: bool) -> Vec<IpNet> {
    let mut addresses: Vec<IpNet> = Vec::new();
    for text in fields.texts("address", "an address such as \"10.0.1.1/24\", or a list of them") {
        match parse_address(text, class_e) {
            Ok(net) if addresses.iter().any(|other| other.addr() == net.addr()) => {
                fields.error("address", format!("address \"{text}\" given twice; remove one"));
            }
            Ok(net) => addresses.push(net),
            Err(reason) => fields.error("address", format!("address \"{text}\": {reason}")),
        }
    }
    addresses
}

fn parse_address(text: &str, class_e: bool) -> Result<IpNet, String> {
    let net = parse_prefix(text, "\"10.0.1.1/24\" or \"fd00:1::1/64\"")?;
    let address = net.addr();
    if let Some(reason) = not_a_host(address, class_e) {
        return Err(format!("{reason}, not a port's; use a unicast address"));
    }
    if is_link_local(address) {
        return Err("the router makes its link-local addresses from the port's MAC; leave it out"
            .to_owned());
    }
    if let Some(reason) = names_the_network(address, &net) {
        let mut hosts = net.hosts();
        let first = hosts.next().filter(|&host| host != address).or_else(|| hosts.next());
        let example = first
            .map_or_else(String::new, |host| format!(", {host}/{} for example", net.prefix_len()));
        return Err(format!("{reason}, not a host's; use a host's address{example}"));
    }
    Ok(net)
}

/// Adds an address to the networks. An overlap with the network of another port of its VRF is an error.
fn connect(context: &mut Context<'_>, new: Connected) {
    let overlap = context.networks.of(new.vrf).find(|other| {
        other.port != new.port
            && (other.net.contains(&new.net.network()) || new.net.contains(&other.net.network()))
    });
    if let Some(other) = overlap {
        let name = |at: usize| {
            let kind = if context.is_loopback(at) { LOOPBACK } else { "port" };
            format!("{kind} \"{}\"", context.port_names[at].0)
        };
        let message = format!(
            "{}: address \"{}\" overlaps \"{}\" of {} on line {}; give each a network of its own",
            name(new.port),
            new.net,
            other.net,
            name(other.port),
            other.line
        );
        context.errors.add(Some(new.line), message);
    }
    context.networks.add(new);
}
