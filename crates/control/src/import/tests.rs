//! Tests with files of every kind, intact and broken.

use std::io::Write;
use std::net::IpAddr;

use bzip2::write::BzEncoder;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::rib::tests::two_ports;

const TEXT: &str = "; a comment\n# another\n\n198.51.100.0/24\t64500\n2001:db8::/32\tAS64501\r\n\
                    203.0.113.0/24 64502\n198.51.100.0/24\t7\n";

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn expected() -> Vec<(IpNet, u32)> {
    vec![
        (net("198.51.100.0/24"), 64500),
        (net("2001:db8::/32"), 64501),
        (net("203.0.113.0/24"), 64502),
    ]
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Reads bytes as a file whose name does not indicate a format.
fn read(bytes: &[u8]) -> Result<Table, ImportError> {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("table");
    std::fs::write(&file, bytes).unwrap();
    read_table(&file, &mut |_, _, _| true)
}

/// Returns the error of a file without its path.
fn error(bytes: &[u8]) -> String {
    let error = read(bytes).expect_err("an error was expected").to_string();
    let (_, message) = error.split_once("table: ").unwrap();
    message.to_owned()
}

fn mrt_record(kind: u16, subtype: u16, body: &[u8]) -> Vec<u8> {
    let mut record = 1_400_000_000u32.to_be_bytes().to_vec();
    record.extend(kind.to_be_bytes());
    record.extend(subtype.to_be_bytes());
    record.extend((body.len() as u32).to_be_bytes());
    record.extend(body);
    record
}

/// Returns an AS_PATH attribute of these segments, after an ORIGIN attribute.
fn attributes(segments: &[(u8, &[u32])]) -> Vec<u8> {
    let mut path = Vec::new();
    for (kind, numbers) in segments {
        path.extend([*kind, numbers.len() as u8]);
        path.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    }
    let mut attributes = vec![0x40, 1, 1, 0];
    attributes.extend([0x50, 2]);
    attributes.extend((path.len() as u16).to_be_bytes());
    attributes.extend(path);
    attributes
}

/// Returns a RIB record with one entry for each of the attributes.
fn rib_record(subtype: u16, prefix: &str, entries: &[Vec<u8>]) -> Vec<u8> {
    let prefix = net(prefix);
    let octets = match prefix.addr() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let mut body = vec![0, 0, 0, 0, prefix.prefix_len()];
    body.extend(&octets[..usize::from(prefix.prefix_len()).div_ceil(8)]);
    body.extend((entries.len() as u16).to_be_bytes());
    for attributes in entries {
        body.extend([0, 1, 0, 0, 0, 0]);
        if subtype >= 8 {
            body.extend([0, 0, 0, 9]);
        }
        body.extend((attributes.len() as u16).to_be_bytes());
        body.extend(attributes);
    }
    mrt_record(13, subtype, &body)
}

fn mrt_table() -> Vec<u8> {
    let sequence: &[u32] = &[3356, 1299, 64500];
    [
        mrt_record(13, 1, &[0; 8]),
        rib_record(2, "198.51.100.0/24", &[attributes(&[(2, sequence)])]),
        // The first path is empty, the second ends in an aggregate's AS_SET.
        rib_record(
            4,
            "2001:db8::/32",
            &[attributes(&[]), attributes(&[(2, &[1]), (1, &[64501, 5])])],
        ),
        rib_record(8, "203.0.113.0/24", &[attributes(&[(2, &[64502]), (3, &[65000])])]),
        rib_record(2, "198.51.100.0/24", &[attributes(&[(2, &[7])])]),
    ]
    .concat()
}

#[test]
fn every_kind_of_file_is_read() {
    for (format, bytes) in [(Format::Text, TEXT.as_bytes().to_vec()), (Format::Mrt, mrt_table())] {
        for (compression, bytes) in [
            (Compression::None, bytes.clone()),
            (Compression::Gzip, gzip(&bytes)),
            (Compression::Bzip2, bzip2(&bytes)),
        ] {
            let table =
                read(&bytes).unwrap_or_else(|error| panic!("{format} {compression:?}: {error}"));
            assert_eq!((table.format, table.compression), (format, compression));
            assert_eq!(table.entries, expected(), "{format} {compression:?}");
            assert_eq!((table.duplicates, table.refused), (1, 0));
        }
    }
}

#[test]
fn files_of_several_compressed_parts_are_read_to_the_end() {
    let (first, second) = TEXT.split_at(TEXT.find("2001").unwrap());
    for parts in [
        [gzip(first.as_bytes()), gzip(second.as_bytes())].concat(),
        [bzip2(first.as_bytes()), bzip2(second.as_bytes())].concat(),
    ] {
        assert_eq!(read(&parts).unwrap().entries, expected());
    }
}

#[test]
fn lines_that_are_not_routes_are_refused_with_place_and_reason() {
    let long = "x".repeat(300);
    let text = format!(
        "198.51.100.0/24\t1\nfoo\n198.51.100.0\t5\n198.51.100.7/24\t5\n10.0.0.0/33\t5\n\
         10.0.0.0/8\tx\n10.0.0.0/8\t4294967296\n224.0.0.0/8\t5\n10.0.0.0/8\t5\t6\n{long}\n"
    );
    let mut bytes = text.into_bytes();
    bytes.extend(b"\xff\xfe\t5\n");
    let table = read(&bytes).unwrap();
    assert_eq!(table.entries.len(), 1);
    assert_eq!(table.refused, 10);
    let reasons: Vec<String> =
        table.refusals.iter().map(|r| format!("{}: {}", r.place, r.reason)).collect();
    assert_eq!(
        reasons,
        [
            r#"2: "foo": expected PREFIX<TAB>AS"#,
            r#"3: "198.51.100.0" is not a prefix"#,
            "4: 198.51.100.7/24: host bits are set; the prefix is 198.51.100.0/24",
            r#"5: "10.0.0.0/33" is not a prefix"#,
            r#"6: "x" is not an AS number"#,
            r#"7: "4294967296" is not an AS number"#,
            "8: 224.0.0.0/8: lies in 224.0.0.0/4 (multicast), never forwarded",
            r#"9: "10.0.0.0/8	5	6": expected PREFIX<TAB>AS"#,
            "10: 301 bytes long, 256 is the most",
            r"11: not text: \xff\xfe\t5",
        ]
        .map(|reason| reason.replace('\t', "\\t"))
    );
}

#[test]
fn refusals_are_all_counted_and_the_first_are_kept() {
    let text = format!("198.51.100.0/24\t1\n{}", "foo\n".repeat(1000));
    let table = read(text.as_bytes()).unwrap();
    assert_eq!((table.refused, table.refusals.len()), (1000, REFUSALS_KEPT));
}

#[test]
fn mrt_records_that_lie_are_refused() {
    let good = rib_record(2, "198.51.100.0/24", &[attributes(&[(2, &[9])])]);
    let mut long_prefix = vec![0, 0, 0, 0, 33, 1, 2, 3, 4, 5, 0, 0];
    long_prefix = mrt_record(13, 2, &long_prefix);
    let cut = mrt_record(13, 2, &[0, 0, 0, 0, 24, 198, 51]);
    let no_path = rib_record(2, "192.0.2.0/24", &[attributes(&[]), vec![0x40, 2, 200]]);
    let other = mrt_record(16, 4, &[1, 2, 3]);
    let multicast = mrt_record(13, 3, &[]);
    let table = read(&[good, long_prefix, cut, no_path, other, multicast].concat()).unwrap();
    assert_eq!(table.entries, [(net("198.51.100.0/24"), 9)]);
    let reasons: Vec<&str> = table.refusals.iter().map(|r| r.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "prefix length 33, 32 is the most",
            "a record of 7 bytes is too short for what it says",
            "192.0.2.0/24: none of 2 paths has an origin AS",
            "MRT type 16; only TABLE_DUMP_V2 (13) is read",
            "TABLE_DUMP_V2 subtype 3; only unicast tables are read",
        ]
    );
}

#[test]
fn broken_files_are_named_with_what_was_read() {
    let text: String = (0..60_000u32)
        .map(|i| format!("{}.{}.{}.0/24\t{i}\n", 1 + i / 65536, i / 256 % 256, i % 256))
        .collect();
    let fetch = "the file is truncated or corrupt, fetch it again";
    let whole = gzip(text.as_bytes());
    let cut = error(&whole[..whole.len() / 2]);
    assert!(cut.starts_with("damaged after ") && cut.ends_with(fetch), "{cut}");
    assert!(!cut.starts_with("damaged after 0 "), "{cut}");
    let mut flipped = whole.clone();
    for byte in &mut flipped[whole.len() / 2..whole.len() / 2 + 50] {
        *byte ^= 0x55;
    }
    assert!(error(&flipped).contains(fetch), "{}", error(&flipped));
    let whole = bzip2(text.as_bytes());
    assert!(error(&whole[..whole.len() / 2]).contains(fetch));
    let table = mrt_table();
    assert_eq!(
        error(&table[..table.len() - 3]),
        format!("damaged after 3 routes: record 5 ends after 29 of 32 bytes; {fetch}")
    );
    let mut huge = table.clone();
    huge.extend([0, 0, 0, 0, 0, 13, 0, 2, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(
        error(&huge),
        format!(
            "damaged after 3 routes: record 6 claims 4294967295 bytes, 67108864 is the most; {fetch}"
        )
    );
}

#[test]
fn files_that_are_no_tables_are_refused() {
    let expected = "expected MRT TABLE_DUMP_V2, or lines of PREFIX<TAB>AS";
    assert_eq!(error(b""), format!("no route in it; {expected}"));
    assert_eq!(error(b"; only this\n"), format!("no route in it; {expected}"));
    assert_eq!(
        error(b"hello\nworld\n"),
        format!(
            "no route in it: 2 lines refused, the first at line 1: \"hello\": expected PREFIX<TAB>AS; {expected}"
        )
    );
    assert_eq!(
        error(&mrt_record(16, 4, &[0; 40])),
        format!(
            "no route in it: 1 record refused, the first at record 1: MRT type 16; only TABLE_DUMP_V2 (13) is read; {expected}"
        )
    );
    assert_eq!(error(b"\xfd7zXZ\0"), "compressed by xz; unpack it, or use gzip or bzip2");
    let missing = read_table(FilePath::new("/nonexistent/table.gz"), &mut |_, _, _| true)
        .unwrap_err()
        .to_string();
    assert_eq!(
        missing,
        "import /nonexistent/table.gz: cannot be opened: No such file or directory (os error 2)"
    );
}

#[test]
fn prefixes_are_spread_by_origin_over_the_gateways_of_their_family() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("table");
    std::fs::write(&file, "198.51.100.0/24\t4\n203.0.113.0/24\t7\n2001:db8::/32\t1\nfoo\n")
        .unwrap();
    let mut rib = two_ports();
    let path = |port: u16, via: &str| {
        Path::over(dataplane::interface::InterfaceId::new(port).unwrap(), via.parse().unwrap())
    };
    let statement = config::Import {
        line: 1,
        file: file.clone(),
        modified: None,
        via4: vec![path(0, "10.0.1.2"), path(1, "10.0.2.2")],
        via6: Vec::new(),
    };
    let report = import(&mut rib, &statement, 0, &mut |_, _, _| true).unwrap();
    assert_eq!((report.ipv4, report.ipv6, report.without_gateway6), (2, 0, 1));
    assert_eq!(
        report.to_string(),
        format!(
            "import {}: 2 IPv4 and 0 IPv6 routes (text)\n  1 IPv6 prefix left out: via has no \
             IPv6 gateway, add one\n  1 line refused:\n    line 4: \"foo\": expected PREFIX<TAB>AS",
            file.display()
        )
    );
    for (address, gateway) in
        [("198.51.100.1", path(0, "10.0.1.2")), ("203.0.113.1", path(1, "10.0.2.2"))]
    {
        let found = rib.lookup(VrfId::DEFAULT, address.parse().unwrap()).unwrap();
        assert_eq!(found.route.source, RouteSource::Import);
        assert_eq!(found.route.target, rib::Target::Unicast(vec![gateway]));
    }
    assert_eq!(rib.lookup(VrfId::DEFAULT, "2001:db8::1".parse().unwrap()), None);
}

#[test]
fn a_made_up_table_has_the_size_asked_for_and_reads_back_without_refusals() {
    let directory = TempDir::new().unwrap();
    for name in ["table.gz", "table.txt"] {
        let file = directory.path().join(name);
        write_synthetic(&file, 20_000, 3_000).unwrap();
        let table = read_table(&file, &mut |_, _, _| true).unwrap();
        assert_eq!((table.refused, table.duplicates), (0, 0), "{:?}", table.refusals);
        let ipv4 = table.entries.iter().filter(|(prefix, _)| prefix.addr().is_ipv4()).count();
        assert_eq!((ipv4, table.entries.len() - ipv4), (20_000, 3_000));
        assert!(table.entries.iter().all(|(prefix, _)| !prefix.contains(&net("10.0.1.2/32"))));
    }
}

#[test]
fn the_watch_hears_how_far_an_import_is_and_can_stop_it() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("table.txt");
    write_synthetic(&file, 20_000, 0).unwrap();
    let length = std::fs::metadata(&file).unwrap().len();
    let path = Path::over(dataplane::interface::InterfaceId::FIRST, "10.0.1.2".parse().unwrap());
    let statement =
        config::Import { line: 1, file, modified: None, via4: vec![path], via6: Vec::new() };
    let mut heard = Vec::new();
    let mut watch = |stage, done, all| {
        heard.push((stage, done, all));
        true
    };
    import(&mut two_ports(), &statement, 0, &mut watch).unwrap();
    assert!(heard.contains(&(Stage::Read, length, length)), "{heard:?}");
    let loaded: Vec<u64> =
        heard.iter().filter(|(stage, ..)| *stage == Stage::Load).map(|h| h.1).collect();
    assert_eq!(loaded, [4096, 8192, 12_288, 16_384]);
    let error =
        import(&mut two_ports(), &statement, 0, &mut |_, done, _| done < length / 2).unwrap_err();
    assert!(matches!(error, ImportError::Damaged { .. }), "{error}");
    let mut rib = two_ports();
    let stop = &mut |stage, done, _| stage == Stage::Read || done < 8000;
    assert_eq!(import(&mut rib, &statement, 0, stop).unwrap().ipv4, 8191);
}

#[test]
fn half_a_million_routes_are_loaded() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("table.gz");
    write_synthetic(&file, 500_000, 0).unwrap();
    let mut rib = two_ports();
    let port = dataplane::interface::InterfaceId::FIRST;
    let path = Path::over(port, "10.0.1.2".parse().unwrap());
    let statement =
        config::Import { line: 1, file, modified: None, via4: vec![path], via6: Vec::new() };
    let report = import(&mut rib, &statement, 0, &mut |_, _, _| true).unwrap();
    assert_eq!(report.ipv4, 500_000);
}

/// Bytes of a file, some of them replaced, the end perhaps cut off.
fn damaged(whole: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let most = whole.len();
    let changes = prop::collection::vec((0..most, any::<u8>()), 0..6);
    (changes, most / 2..=most).prop_map(move |(changes, length)| {
        let mut bytes = whole.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(length);
        bytes
    })
}

/// A table read from damaged bytes has valid prefixes, or there is an error; never a panic.
fn check_damaged(bytes: &[u8]) {
    if let Ok(table) = read(bytes) {
        assert!(table.entries.iter().all(|(prefix, _)| prefix.trunc() == *prefix));
        assert!(table.entries.iter().all(|(prefix, _)| rib::reserved_range(prefix).is_none()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_dumps_do_no_harm(bytes in damaged(mrt_table())) {
        check_damaged(&bytes);
    }

    #[test]
    fn damaged_compressed_dumps_do_no_harm(
        gz in damaged(gzip(&mrt_table())),
        bz in damaged(bzip2(&mrt_table())),
    ) {
        check_damaged(&gz);
        check_damaged(&bz);
    }

    #[test]
    fn damaged_lists_do_no_harm(bytes in damaged(TEXT.as_bytes().to_vec())) {
        check_damaged(&bytes);
    }
}
