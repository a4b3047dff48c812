//! The telnet protocol (RFC 854) of a server without options: the client edits its lines itself
//! (line mode), and receives text.

/// Longest line, in bytes.
pub const LINE_MAX: usize = 4096;

const SE: u8 = 240;
const BREAK: u8 = 243;
const INTERRUPT: u8 = 244;
const ARE_YOU_THERE: u8 = 246;
const ERASE_CHARACTER: u8 = 247;
const ERASE_LINE: u8 = 248;
const SB: u8 = 250;
const WILL: u8 = 251;
const WONT: u8 = 252;
const DO: u8 = 253;
const DONT: u8 = 254;
const IAC: u8 = 255;

/// Input from a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A line, without its end.
    Line(String),
    /// A line longer than [`LINE_MAX`], which is discarded.
    TooLong,
    /// Input that is answered immediately with these bytes.
    Answer(Vec<u8>),
    /// A request to stop the running command.
    Interrupt,
    /// The end of the input.
    End,
}

/// State of the protocol's parser.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After a carriage return, which ended a line: LF or NUL belong to it.
    Return,
    Command,
    /// After WILL, WONT, DO or DONT.
    Option(u8),
    /// Between SB and SE; true if IAC was last.
    Suboption(bool),
}

/// Parser of a client's input. It stores one line at most.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
    line: Vec<u8>,
    too_long: bool,
}

impl Decoder {
    /// Parses some bytes, split anywhere.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<Heard> {
        bytes.iter().filter_map(|&byte| self.byte(byte)).collect()
    }

    fn byte(&mut self, byte: u8) -> Option<Heard> {
        match std::mem::take(&mut self.state) {
            State::Text => return self.text(byte),
            State::Return if matches!(byte, b'\n' | 0) => {}
            State::Return => return self.text(byte),
            State::Command => return self.command(byte),
            State::Option(command) => return refuse(command, byte),
            State::Suboption(true) if byte == SE => {}
            State::Suboption(iac) => self.state = State::Suboption(!iac && byte == IAC),
        }
        None
    }

    fn command(&mut self, byte: u8) -> Option<Heard> {
        match byte {
            IAC => self.put(IAC),
            WILL | WONT | DO | DONT => self.state = State::Option(byte),
            SB => self.state = State::Suboption(false),
            BREAK | INTERRUPT => return Some(Heard::Interrupt),
            ARE_YOU_THERE => return Some(Heard::Answer(b"\r\n[yes]\r\n".to_vec())),
            ERASE_CHARACTER => self.erase(),
            ERASE_LINE => self.clear(),
            // No operation, data mark, go ahead, abort output, and unassigned ones.
            _ => {}
        }
        None
    }

    /// Handles a byte of text. Clients in character mode send control characters themselves.
    fn text(&mut self, byte: u8) -> Option<Heard> {
        match byte {
            IAC => self.state = State::Command,
            b'\r' => {
                self.state = State::Return;
                return Some(self.end());
            }
            b'\n' => return Some(self.end()),
            3 => {
                self.clear();
                return Some(Heard::Interrupt);
            }
            4 if self.line.is_empty() => return Some(Heard::End),
            8 | 127 => self.erase(),
            21 => self.clear(),
            b'\t' => self.put(b' '),
            0..=31 => {}
            _ => self.put(byte),
        }
        None
    }

    fn put(&mut self, byte: u8) {
        if self.line.len() < LINE_MAX { self.line.push(byte) } else { self.too_long = true }
    }

    /// Removes the last character with all its bytes.
    fn erase(&mut self) {
        while let Some(byte) = self.line.pop() {
            if byte & 0b1100_0000 != 0b1000_0000 {
                break;
            }
        }
    }

    fn clear(&mut self) {
        self.line.clear();
        self.too_long = false;
    }

    fn end(&mut self) -> Heard {
        let line = std::mem::take(&mut self.line);
        match std::mem::take(&mut self.too_long) {
            true => Heard::TooLong,
            false => Heard::Line(String::from_utf8_lossy(&line).into_owned()),
        }
    }
}

/// Refuses an option: all are off and stay so. WONT and DONT are not answered, so that two refusing
/// sides do not continue for ever.
fn refuse(command: u8, option: u8) -> Option<Heard> {
    let answer = match command {
        WILL => DONT,
        DO => WONT,
        _ => return None,
    };
    Some(Heard::Answer(vec![IAC, answer, option]))
}

/// Encodes a text: lines end with CR LF, a byte 255 is doubled.
pub fn encode(text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len() + text.len() / 16);
    for &byte in text {
        match byte {
            b'\n' => encoded.extend(b"\r\n"),
            IAC => encoded.extend([IAC, IAC]),
            // A lone one would need a NUL after it; it is never intended.
            b'\r' => {}
            _ => encoded.push(byte),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Vec<Heard> {
        Decoder::default().read(bytes)
    }

    fn line(text: &str) -> Heard {
        Heard::Line(text.to_owned())
    }

    #[test]
    fn lines_end_as_telnet_and_netcat_end_them() {
        assert_eq!(read(b"a\r\nb\r\0c\rd\ne"), [line("a"), line("b"), line("c"), line("d")]);
        assert_eq!(read(b"\r\n\r\n\n"), [line(""), line(""), line("")]);
    }

    #[test]
    fn options_are_refused_once_and_for_all() {
        let echo = 1;
        assert_eq!(read(&[IAC, WILL, echo]), [Heard::Answer(vec![IAC, DONT, echo])]);
        assert_eq!(read(&[IAC, DO, echo]), [Heard::Answer(vec![IAC, WONT, echo])]);
        assert_eq!(read(&[IAC, WONT, echo, IAC, DONT, echo]), []);
        // The size of a window of 65535 columns: 255 is doubled.
        assert_eq!(read(b"a\xff\xfa\x1f\xff\xff\xff\xff\0\x18\xff\xf0b\r\n"), [line("ab")]);
    }

    #[test]
    fn commands_of_the_protocol_are_obeyed() {
        assert_eq!(read(b"shox\xff\xf7w\r\n"), [line("show")]);
        assert_eq!(read(b"show\xff\xf8ports\r\n"), [line("ports")]);
        assert_eq!(read(b"\xff\xf4\xff\xf3"), [Heard::Interrupt, Heard::Interrupt]);
        assert_eq!(read(b"\xff\xf6"), [Heard::Answer(b"\r\n[yes]\r\n".to_vec())]);
        assert_eq!(read(b"\xff\xf1\xff\xf9\xff\xf2a\n"), [line("a")]);
    }

    #[test]
    fn control_characters_edit_the_line() {
        assert_eq!(read("sé\u{7f}h\x08how\r\n".as_bytes()), [line("show")]);
        assert_eq!(read(b"abc\x15show\x07\r\n"), [line("show")]);
        assert_eq!(read(b"abc\x03show\tx\r\n"), [Heard::Interrupt, line("show x")]);
        assert_eq!(read(b"a\x04\n\x04"), [line("a"), Heard::End]);
    }

    #[test]
    fn a_line_is_bounded() {
        let long = |length: usize| [vec![b'a'; length], b"\nb\n".to_vec()].concat();
        assert_eq!(read(&long(LINE_MAX)), [line(&"a".repeat(LINE_MAX)), line("b")]);
        assert_eq!(read(&long(LINE_MAX + 1)), [Heard::TooLong, line("b")]);
    }

    #[test]
    fn text_is_sent_with_its_line_ends() {
        assert_eq!(encode(b"a\nb\r\n\xff"), b"a\r\nb\r\n\xff\xff");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_however_they_are_cut(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(IAC), 240..=255u8], 0..200),
            cut in 0..200usize,
        ) {
            let mut decoder = Decoder::default();
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let mut heard = decoder.read(first);
            heard.extend(decoder.read(second));
            prop_assert_eq!(heard, read(&bytes));
            prop_assert!(decoder.line.len() <= LINE_MAX);
        }

        #[test]
        fn what_is_sent_is_read_as_it_was(text in "[^\\p{Cc}]{0,80}") {
            let sent = encode(format!("{text}\n").as_bytes());
            prop_assert_eq!(read(&sent), [line(&text)]);
        }
    }
}
