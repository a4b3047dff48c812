//! Lines of `PREFIX<TAB>AS`.

use std::io::{self, BufRead};

use ipnet::IpNet;

use super::Collector;

/// Limit of a line's length. No prefix with its AS is longer; a longer line is refused without
/// being stored.
const LINE_MOST: usize = 256;

/// Reads lines to the end.
pub(super) fn read(reader: &mut impl BufRead, collector: &mut Collector<'_>) -> io::Result<()> {
    let mut line = Vec::with_capacity(LINE_MOST);
    let mut place = 0;
    loop {
        line.clear();
        let length = read_line(reader, &mut line)?;
        if length == 0 {
            return Ok(());
        }
        place += 1;
        if length > LINE_MOST as u64 {
            collector.refuse(place, format!("{length} bytes long, {LINE_MOST} is the most"));
            continue;
        }
        let line = line.trim_ascii();
        if matches!(line.first(), None | Some(b';' | b'#')) {
            continue;
        }
        match parse(line) {
            Ok((prefix, origin)) => collector.take(place, prefix, origin),
            Err(reason) => collector.refuse(place, reason),
        }
    }
}

/// Reads one line with its newline and returns its length; at most [`LINE_MOST`] bytes are kept.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    let mut length = 0;
    loop {
        let buffer = reader.fill_buf()?;
        let newline = buffer.iter().position(|&byte| byte == b'\n');
        let used = newline.map_or(buffer.len(), |at| at + 1);
        let kept = used.min(LINE_MOST - line.len());
        line.extend_from_slice(&buffer[..kept]);
        reader.consume(used);
        length += used as u64;
        if newline.is_some() || used == 0 {
            return Ok(length);
        }
    }
}

fn parse(line: &[u8]) -> Result<(IpNet, u32), String> {
    let text = std::str::from_utf8(line).map_err(|_| {
        format!(
            "not text: {}",
            line.escape_ascii().to_string().chars().take(40).collect::<String>()
        )
    })?;
    let mut fields = text.split_ascii_whitespace();
    let (Some(prefix), Some(origin), None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(format!("{:?}: expected PREFIX<TAB>AS", shortened(text)));
    };
    let prefix = prefix.parse().map_err(|_| format!("{:?} is not a prefix", shortened(prefix)))?;
    let digits = origin.strip_prefix("AS").unwrap_or(origin);
    let origin =
        digits.parse().map_err(|_| format!("{:?} is not an AS number", shortened(origin)))?;
    Ok((prefix, origin))
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}
