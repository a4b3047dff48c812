//! Whole listings and their conversions. The listings were printed by nft 1.0.6 and iptables-save 1.8.9.

use std::fs;
use std::path::Path;

use convert::{Converted, Format, convert};

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn converted(format: Format, file: &str) -> Converted {
    convert(format, file, &read(file)).unwrap()
}

/// Checks that the Lua of `file` is that in `wanted`.
fn check(format: Format, file: &str, wanted: &str) {
    let lua = converted(format, file).lua;
    if lua != read(wanted) {
        let place = lua.lines().zip(read(wanted).lines()).position(|(one, other)| one != other);
        panic!("{file} is not {wanted} from line {:?} on:\n{lua}", place.map(|line| line + 1));
    }
}

#[test]
fn nftables() {
    check(Format::Nftables, "nftables.txt", "nftables.lua");
}

#[test]
fn iptables() {
    check(Format::Iptables, "iptables.txt", "iptables.lua");
}

#[test]
fn text_and_json_say_the_same() {
    let rules = |file| {
        let converted = converted(Format::Nftables, file);
        let lines = converted.lua.lines().filter(|line| !line.trim_start().starts_with("--"));
        (lines.map(str::to_owned).collect::<Vec<_>>(), converted.left.len())
    };
    assert_eq!(rules("nftables.txt"), rules("nftables.json"));
}

/// A truncated listing is either an error or is read; it never panics.
#[test]
fn no_part_of_a_listing_is_a_crash() {
    let files = [
        (Format::Nftables, "nftables.txt"),
        (Format::Nftables, "nftables.json"),
        (Format::Iptables, "iptables.txt"),
    ];
    for (format, file) in files {
        let text = read(file);
        for (end, _) in text.char_indices().step_by(7) {
            drop(convert(format, file, &text[..end]));
            drop(convert(format, file, &text[end..]));
        }
    }
}
