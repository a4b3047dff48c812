//! Elements that make packets, and devices.

use std::net::Ipv4Addr;

use ::click::args::Args;
use ::click::kinds;
use wire::MacAddr;
use wire::build::{Ipv4Fields, Link, ethernet, ipv4_header};
use wire::checksum::pseudo_header_v4;
use wire::ethernet::ETHERTYPE_IPV4;
use zerocopy::IntoBytes;

use super::super::arguments::{label, mac, unquoted};
use super::super::net::{FROM_HOST, Net, TO_HOST};
use super::{Piece, State, Step, Translated, Value, number};

/// Classes that make packets.
pub(super) const CLASSES: [&str; 5] =
    ["InfiniteSource", "RatedSource", "TimedSource", "UDPSource", "FastUDPSource"];

/// Most bytes of a frame.
const MOST: usize = 1518;

/// Packets of an element that makes some.
struct Made {
    frame: Vec<u8>,
    /// -1: no limit.
    limit: i64,
    /// Packets a second.
    rate: Option<u64>,
    /// The router ends behind the last one.
    stops: bool,
    active: bool,
}

/// The keyword by which a source ends the router when it has no packets left.
const STOP: &str = "STOP";

/// The script that ends the router when a source with `STOP true` has made its last packet.
pub(in super::super) fn stop(net: &Net<'_>, element: usize) -> Option<String> {
    let (class, name) = (net.class(element), &net.element(element).name);
    // Errors are those of `translate`.
    let stops = match class {
        "InfiniteSource" => infinite(&mut net.args(element)).is_ok_and(|made| made.stops),
        "RatedSource" => rated(&mut net.args(element)).is_ok_and(|made| made.stops),
        "TimedSource" => timed(&mut net.args(element)).is_ok_and(|made| made.stops),
        "FromDump" => net.args(element).keyword(STOP, kinds::boolean) == Ok(Some(true)),
        _ => false,
    };
    let goes_on = match class {
        "FromDump" => format!("$({name}.active)"),
        _ => format!(
            "$(or $(not $({name}.active)) $(lt $({name}.limit) 0) $(lt $({name}.count) $({name}.limit)))"
        ),
    };
    stops.then(|| format!("label again, wait 10ms, goto again {goes_on}, write stop"))
}

/// An element that makes packets.
pub(super) fn source(net: &Net<'_>, element: usize) -> Translated {
    let mut args = net.args(element);
    let made = match net.class(element) {
        "InfiniteSource" => infinite(&mut args)?,
        "RatedSource" => rated(&mut args)?,
        "TimedSource" => timed(&mut args)?,
        _ => udp(&mut args)?,
    };
    args.finish()?;
    if made.frame.is_empty() || made.frame.len() > MOST {
        return Err(format!("packets of {} bytes; expected 1 to {MOST}", made.frame.len()));
    }
    let frame: String = made.frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut args =
        vec![("frame", Value::Text(frame)), ("limit", Value::Number(made.limit.max(-1)))];
    if !made.active {
        args.push(("active", Value::Flag(false)));
    }
    if let Some(rate) = made.rate {
        args.push(("rate", Value::Text(format!("{rate}pps"))));
    }
    Ok((Piece::Steps(vec![Step::new("packets", args, &["next"])]), State::default()))
}

/// The packets of a file.
pub(super) fn from_dump(mut args: Args<'_>) -> Translated {
    let file = args.required("FILENAME", label)?;
    let timing = args.keyword("TIMING", kinds::boolean)?.unwrap_or(false);
    args.keyword(STOP, kinds::boolean)?;
    args.ignore(&["MMAP"]);
    for keyword in ["FORCE_IP", "ACTIVE"] {
        let usual = keyword == "ACTIVE";
        if args.keyword(keyword, kinds::boolean)?.is_some_and(|value| value != usual) {
            return Err(format!("{keyword} {} is not supported yet", !usual));
        }
    }
    args.finish()?;
    let args = vec![("file", Value::Text(file)), ("timing", Value::Flag(timing))];
    Ok((Piece::Steps(vec![Step::new("from-dump", args, &["next"])]), State::default()))
}

/// A file for packets.
pub(super) fn to_dump(mut args: Args<'_>, state: State) -> Translated {
    let file = args.required("FILENAME", label)?;
    let length = args.optional("SNAPLEN", kinds::integer(0..=65_535))?.unwrap_or(2000);
    let encap = args.optional("ENCAP", kinds::word)?;
    args.ignore(&["EXTRA_LENGTH", "UNBUFFERED", "NANO"]);
    args.finish()?;
    let link = match encap.as_deref() {
        None | Some("ETHER") => "ethernet",
        Some("IP") => "ip",
        Some(other) => return Err(format!("ENCAP {other} is not supported; ETHER and IP are")),
    };
    let length = if length == 0 { SNAPLEN_MOST } else { length.min(SNAPLEN_MOST) };
    let args = vec![
        ("file", Value::Text(file)),
        ("length", Value::Number(length)),
        ("link", Value::text(link)),
        ("offset", Value::Number(state.offset)),
    ];
    Ok((Piece::Steps(vec![Step::new("to-dump", args, &["next"])]), state))
}

/// Most bytes of a packet in a dump.
const SNAPLEN_MOST: i64 = 2048;

/// DATA of sources that have it.
fn data(args: &mut Args<'_>) -> Result<Vec<u8>, String> {
    let usual =
        || b"Random bullshit in a packet, at least 64 bytes long. Well, now it is.".to_vec();
    Ok(args.optional("DATA", kinds::bytes)?.unwrap_or_else(usual))
}

/// LENGTH: the data are cut to it, or filled up.
fn fit(args: &mut Args<'_>, data: &mut Vec<u8>) -> Result<(), String> {
    if let Some(length) = args.keyword("LENGTH", number)? {
        data.resize(usize::try_from(length).unwrap_or(usize::MAX).min(MOST + 1), 0);
    }
    Ok(())
}

fn infinite(args: &mut Args<'_>) -> Result<Made, String> {
    let mut frame = data(args)?;
    let limit = args.optional("LIMIT", number)?.unwrap_or(-1);
    args.optional("BURST", number)?;
    let active = args.optional("ACTIVE", kinds::boolean)?.unwrap_or(true);
    let stops = args.optional(STOP, kinds::boolean)? == Some(true);
    fit(args, &mut frame)?;
    Ok(Made { frame, limit, rate: None, stops, active })
}

fn rated(args: &mut Args<'_>) -> Result<Made, String> {
    let mut frame = data(args)?;
    let rate = args.optional("RATE", kinds::integer(1..=u64::MAX))?.unwrap_or(10);
    let limit = args.optional("LIMIT", number)?.unwrap_or(-1);
    let active = args.optional("ACTIVE", kinds::boolean)?.unwrap_or(true);
    let stops = args.optional(STOP, kinds::boolean)? == Some(true);
    fit(args, &mut frame)?;
    Ok(Made { frame, limit, rate: Some(rate), stops, active })
}

fn timed(args: &mut Args<'_>) -> Result<Made, String> {
    let interval = args.optional("INTERVAL", kinds::duration)?;
    let seconds = interval.map_or(0.5, |interval| interval.as_secs_f64());
    let mut frame = data(args)?;
    let limit = args.keyword("LIMIT", number)?.unwrap_or(-1);
    let active = args.keyword("ACTIVE", kinds::boolean)?.unwrap_or(true);
    let stops = args.keyword(STOP, kinds::boolean)? == Some(true);
    args.ignore(&["HEADROOM"]);
    fit(args, &mut frame)?;
    if !(1e-6..=1.0).contains(&seconds) {
        return Err(format!("INTERVAL of {seconds} seconds; expected 1us to 1s"));
    }
    Ok(Made { frame, limit, rate: Some((1.0 / seconds).round() as u64), stops, active })
}

/// A UDP datagram whose frame has a given length.
fn udp(args: &mut Args<'_>) -> Result<Made, String> {
    let rate = args.required("RATE", kinds::integer(0..=u64::MAX))?;
    let limit = args.required("LIMIT", number)?;
    let length = args.required("LENGTH", kinds::integer(0..=1514usize))?.max(60);
    let link = |mac: [u8; 6]| MacAddr(mac);
    let source = link(args.required("SRCETH", kinds::ether)?);
    let from = args.required("SRCIP", kinds::ip4)?;
    let from_port = args.required("SPORT", kinds::integer(0..=u16::MAX))?;
    let destination = link(args.required("DSTETH", kinds::ether)?);
    let to = args.required("DSTIP", kinds::ip4)?;
    let to_port = args.required("DPORT", kinds::integer(0..=u16::MAX))?;
    let has_checksum = args.optional("CHECKSUM", kinds::boolean)?.unwrap_or(true);
    if args.optional("INTERVAL", number)?.is_some_and(|interval| interval > 0) {
        return Err("INTERVAL is not supported yet; leave it out".to_owned());
    }
    let active = args.optional("ACTIVE", kinds::boolean)?.unwrap_or(true);
    let datagram = datagram(length - 34, (from, from_port), (to, to_port), has_checksum);
    let fields = Ipv4Fields {
        tos: 0,
        identification: 0,
        dont_fragment: false,
        ttl: 250,
        protocol: 17,
        source: from,
        destination: to,
    };
    let header = ipv4_header(fields, datagram.len());
    let packet = [header.as_bytes(), &datagram].concat();
    let frame = ethernet(Link { destination, source }, ETHERTYPE_IPV4, &packet);
    Ok(Made { frame, limit, rate: (rate > 0).then_some(rate), stops: false, active })
}

/// A datagram of so many bytes, its header included, and zeros.
fn datagram(
    length: usize,
    (from, from_port): (Ipv4Addr, u16),
    (to, to_port): (Ipv4Addr, u16),
    has_checksum: bool,
) -> Vec<u8> {
    let mut datagram: Vec<u8> =
        [from_port, to_port, length as u16, 0].into_iter().flat_map(u16::to_be_bytes).collect();
    datagram.resize(length, 0);
    if has_checksum {
        let mut sum = pseudo_header_v4(from, to, 17, length as u16);
        sum.add(&datagram);
        // RFC 768: 0 means none.
        let sum = if sum.finish() == 0 { 0xffff } else { sum.finish() };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    }
    datagram
}

/// The device of an element: the kernel's name of an interface, or a PCI address.
pub(in super::super) fn device(net: &Net<'_>, element: usize) -> Result<String, String> {
    if matches!(net.class(element), FROM_HOST | TO_HOST) {
        return host_device(net, element);
    }
    let Some(first) = net.element(element).arguments.first() else {
        return Err("argument DEVNAME missing".to_owned());
    };
    let first = first.strip_prefix("DEVNAME ").or(first.strip_prefix("PORT ")).unwrap_or(first);
    let name = unquoted(first);
    let name = match name.strip_prefix("netmap:") {
        // A queue of the device follows its name.
        Some(name) => name.rsplit_once('-').map_or(name, |(name, _)| name).to_owned(),
        None => name,
    };
    if name.is_empty() || name.chars().all(|digit| digit.is_ascii_digit()) {
        return Err(format!(
            "device \"{name}\": devices have names here, not numbers; write that of a kernel interface (eth0) or a \
             PCI address (0000:03:00.0)"
        ));
    }
    Ok(name)
}

/// The TAP device of a `FromHost` or `ToHost`: a device of DPDK that the first `FromHost` of its name describes.
fn host_device(net: &Net<'_>, element: usize) -> Result<String, String> {
    let name = host_name(net, element)?;
    let mut all = net.of_class(&[FROM_HOST]).into_iter();
    let found = all.find(|from| host_name(net, *from).is_ok_and(|known| known == name));
    let from = found.ok_or_else(|| {
        format!("no FromHost({name}) makes this interface; add one, FromHost({name}) -> Discard")
    })?;
    let mut args = net.args(from);
    let mac = args.keyword("ETHER", mac)?;
    let mac = mac.map_or_else(String::new, |mac| format!(",mac={mac}"));
    // A name that other elements do not change: a device that stays keeps it.
    Ok(format!("net_tap_{name},iface={name}{mac}"))
}

/// The kernel's name of the interface.
fn host_name(net: &Net<'_>, element: usize) -> Result<String, String> {
    let name = net.args(element).required("DEVNAME", label)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 15 || !name.chars().all(plain) {
        return Err(format!("DEVNAME \"{name}\": expected 1 to 15 letters, digits, -, _ or ."));
    }
    Ok(name)
}
