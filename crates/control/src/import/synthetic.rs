//! Table files that resemble Internet tables, for demonstrations and tests without a real one.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use fib::synthetic;
use flate2::Compression;
use flate2::write::GzEncoder;
use ipnet::IpNet;

/// Origin ASes of the generated tables, from 1 on.
const ORIGINS: u16 = 30_000;

/// Writes a table of `ipv4` and `ipv6` prefixes as text, compressed by gzip if the file's name ends
/// in `.gz`. The same numbers give the same table. No prefix lies in the private and documentation
/// networks, so that they stay free for a laboratory's own networks.
///
/// # Errors
/// The file cannot be written.
pub fn write_synthetic(file: &Path, ipv4: usize, ipv6: usize) -> io::Result<()> {
    let output = BufWriter::new(File::create(file)?);
    if file.extension().is_some_and(|extension| extension == "gz") {
        let mut encoder = GzEncoder::new(output, Compression::fast());
        write_table(&mut encoder, ipv4, ipv6)?;
        encoder.finish()?.flush()
    } else {
        let mut output = output;
        write_table(&mut output, ipv4, ipv6)?;
        output.flush()
    }
}

fn write_table(output: &mut impl Write, ipv4: usize, ipv6: usize) -> io::Result<()> {
    // More than requested, because some are left out.
    let spare = |wanted: usize| wanted + wanted / 20 + 64;
    let v4 = synthetic::ipv4(spare(ipv4), ORIGINS).into_iter();
    let v4 = v4.map(|(prefix, origin)| (IpNet::V4(prefix.into()), origin));
    let v6 = synthetic::ipv6(spare(ipv6), ORIGINS).into_iter();
    let v6 = v6.map(|(prefix, origin)| (IpNet::V6(prefix.into()), origin));
    let local = local_networks();
    let v4 = thin_out(v4.filter(|(prefix, _)| is_public(prefix, &local)).collect(), ipv4);
    let v6 = thin_out(v6.filter(|(prefix, _)| is_public(prefix, &local)).collect(), ipv6);
    for (prefix, origin) in v4.chain(v6) {
        writeln!(output, "{prefix}\t{origin}")?;
    }
    Ok(())
}

/// Selects `count` of the items, evenly spread: the last ones alone would leave out one end of the
/// address space.
fn thin_out<T>(items: Vec<T>, count: usize) -> impl Iterator<Item = T> {
    let length = items.len().max(1);
    let chosen = move |index: usize| (index + 1) * count / length > index * count / length;
    let all = count >= length;
    items.into_iter().enumerate().filter(move |&(index, _)| all || chosen(index)).map(|item| item.1)
}

/// Private, shared and documentation networks.
fn local_networks() -> Vec<IpNet> {
    /// RFC 1918, RFC 6598, RFC 3927, RFC 5737, RFC 2544; RFC 3849, RFC 4193.
    const LOCAL: [&str; 11] = [
        "10.0.0.0/8",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.2.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "2001:db8::/32",
        "fc00::/7",
    ];
    LOCAL.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns true for a prefix that is forwarded and does not overlap the local networks.
fn is_public(prefix: &IpNet, local: &[IpNet]) -> bool {
    crate::rib::reserved_range(prefix).is_none()
        && !local.iter().any(|net| net.contains(prefix) || prefix.contains(net))
}
