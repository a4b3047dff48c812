//! The protocol of Click's `ControlSocket`, version 1.3: commands are lines, some followed by data.
//!
//! ```text
//! <- Click::ControlSocket/1.3
//! -> READ c.count
//! <- 200 Read handler 'c.count' OK
//! <- DATA 2
//! <- 12
//! -> WRITEDATA s.switch 1
//! -> 1
//! <- 200 Write handler 's.switch' OK
//! ```
//!
//! A line ends with CR, LF or both. Data of `…UNTIL` end with a line that has the given text. Everything is read once: a
//! client that sends byte by byte costs no more than another.

use std::io;

use api::HandlerCall;
use api::report::HandlerAnswer;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use super::super::handlers::{said, status};

/// The first line of a server.
pub const GREETING: &[u8] = b"Click::ControlSocket/1.3\r\n";

/// The answer to `HELP`.
pub const HELP: &[u8] = b"200-Commands supported:\r\n\
    200-READ handler [arg...]   call read handler, return DATA\r\n\
    200-READDATA handler len    call read handler with len data bytes, return DATA\r\n\
    200-READUNTIL handler term  call read handler, take data until term, return DATA\r\n\
    200-WRITE handler [arg...]  call write handler\r\n\
    200-WRITEDATA handler len   call write handler, pass len data bytes\r\n\
    200-WRITEUNTIL handler term call write handler, take data until term\r\n\
    200-CHECKREAD handler       check if read handler is valid\r\n\
    200-CHECKWRITE handler      check if write handler is valid\r\n\
    200 QUIT                    close connection\r\n";

/// Longest line.
const LINE_MOST: usize = 16 << 10;

/// Most data of a command: Click's `LARGEST_HANDLER_WRITE`.
const DATA_MOST: usize = 64 << 10;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A handler is called.
    Call(HandlerCall),
    /// An empty line.
    Nothing,
    /// The commands are asked for.
    Help,
    /// The client leaves, with this answer.
    Quit(HandlerAnswer),
    /// It is not understood.
    Wrong(HandlerAnswer),
    /// It has more bytes than there may be, of which the rest is not read.
    TooLong(HandlerAnswer),
    /// It is a line of HTTP.
    Http,
    /// The connection has ended.
    End,
}

/// Commands from a connection.
pub struct Reader<R> {
    read: BufReader<R>,
    /// The last line ended with CR: an LF that follows belongs to it.
    after_cr: bool,
}

/// The data that a command takes.
enum Data<'a> {
    /// The rest of the line.
    Line(&'a str),
    /// So many bytes.
    Bytes(&'a str),
    /// Up to this line.
    Until(&'a str),
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from a connection.
    pub fn new(read: R) -> Self {
        Self { read: BufReader::new(read), after_cr: false }
    }

    /// The next command with its data.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn command(&mut self) -> io::Result<Command> {
        let Some(line) = self.line().await? else { return Ok(Command::End) };
        if line.len() > LINE_MOST {
            return Ok(Command::TooLong(said(status::SYNTAX, "Line too long")));
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        if is_http(&line) {
            return Ok(Command::Http);
        }
        let (word, rest) = first_word(&line);
        let word = word.to_ascii_uppercase();
        match word.as_str() {
            "" => Ok(Command::Nothing),
            "READ" | "GET" | "READDATA" | "READUNTIL" => self.call(&word, rest, false).await,
            "WRITE" | "SET" | "WRITEDATA" | "SETDATA" | "WRITEUNTIL" => {
                self.call(&word, rest, true).await
            }
            "CHECKREAD" | "CHECKWRITE" => Ok(check(rest, word == "CHECKWRITE")),
            "LLRPC" => self.llrpc(rest).await,
            "QUIT" | "CLOSE" => Ok(Command::Quit(farewell(rest))),
            "HELP" => Ok(Command::Help),
            other => Ok(wrong(
                status::UNIMPLEMENTED,
                format!("Command '{}' unimplemented", printable(other)),
            )),
        }
    }

    async fn call(&mut self, word: &str, rest: &str, is_write: bool) -> io::Result<Command> {
        let (handler, rest) = first_word(rest);
        let handler = handler.to_owned();
        if handler.is_empty() {
            return Ok(arguments());
        }
        let data = if word.ends_with("DATA") {
            Data::Bytes(rest)
        } else if word.ends_with("UNTIL") {
            Data::Until(rest)
        } else {
            Data::Line(rest)
        };
        Ok(match self.data(data, word).await? {
            Ok(value) if is_write => Command::Call(HandlerCall::Write { handler, value }),
            Ok(argument) => Command::Call(HandlerCall::Read { handler, argument }),
            Err(command) => command,
        })
    }

    /// The data of a command, or the answer in place of it.
    async fn data(&mut self, data: Data<'_>, word: &str) -> io::Result<Result<String, Command>> {
        let bytes = match data {
            Data::Line(text) => return Ok(Ok(text.to_owned())),
            Data::Until(term) => return self.until(term).await,
            Data::Bytes(text) => text,
        };
        if bytes.split_ascii_whitespace().count() != 1 {
            return Ok(Err(arguments()));
        }
        let Ok(length) = bytes.trim().parse::<u32>() else {
            return Ok(Err(wrong(
                status::SYNTAX,
                format!("Syntax error in '{}'", word.to_lowercase()),
            )));
        };
        self.bytes(length as usize).await
    }

    async fn bytes(&mut self, length: usize) -> io::Result<Result<String, Command>> {
        if length > DATA_MOST {
            return Ok(Err(too_much()));
        }
        if length > 0 {
            self.skip_lf().await?;
        }
        let mut bytes = vec![0; length];
        match self.read.read_exact(&mut bytes).await {
            Ok(_) => Ok(Ok(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Err(too_few())),
            Err(error) => Err(error),
        }
    }

    async fn until(&mut self, term: &str) -> io::Result<Result<String, Command>> {
        let mut data = Vec::new();
        loop {
            let Some(line) = self.line().await? else { return Ok(Err(too_few())) };
            if line.trim_ascii_end() == term.as_bytes() {
                return Ok(Ok(String::from_utf8_lossy(&data).into_owned()));
            }
            if line.len() > LINE_MOST || data.len() + line.len() >= DATA_MOST {
                return Ok(Err(too_much()));
            }
            data.extend(line);
            data.push(b'\n');
        }
    }

    /// Elements here have no such calls; the data of one are read, so that the next command is understood.
    async fn llrpc(&mut self, rest: &str) -> io::Result<Command> {
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let (name, length) = match words[..] {
            [name] => (name, "0"),
            [name, length] => (name, length),
            _ => return Ok(arguments()),
        };
        let Ok(length) = length.parse::<u32>() else {
            return Ok(wrong(status::SYNTAX, "Syntax error in 'llrpc'"));
        };
        Ok(match self.bytes(length as usize).await? {
            Ok(_) => wrong(
                status::UNIMPLEMENTED,
                format!("Cannot call LLRPC '{}' remotely", printable(name)),
            ),
            Err(command) => command,
        })
    }

    /// The next line without its end, at most one byte longer than lines may be; `None` at the end.
    async fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.skip_lf().await?;
        let mut line = Vec::new();
        loop {
            let buffer = self.read.fill_buf().await?;
            if buffer.is_empty() {
                return Ok((!line.is_empty()).then_some(line));
            }
            let end = buffer.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            let taken = end.unwrap_or(buffer.len());
            line.extend(&buffer[..taken.min(LINE_MOST + 1 - line.len().min(LINE_MOST + 1))]);
            self.after_cr = end.is_some_and(|end| buffer[end] == b'\r');
            let consumed = taken + usize::from(end.is_some());
            self.read.consume(consumed);
            if end.is_some() || line.len() > LINE_MOST {
                return Ok(Some(line));
            }
        }
    }

    async fn skip_lf(&mut self) -> io::Result<()> {
        if self.after_cr {
            skip_one(&mut self.read, b'\n').await?;
            self.after_cr = false;
        }
        Ok(())
    }
}

async fn skip_one(read: &mut (impl AsyncBufRead + Unpin), byte: u8) -> io::Result<()> {
    if read.fill_buf().await?.first() == Some(&byte) {
        read.consume(1);
    }
    Ok(())
}

fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_matches(|c: char| c.is_ascii_whitespace());
    let end = text.find(|c: char| c.is_ascii_whitespace()).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start_matches(|c: char| c.is_ascii_whitespace()))
}

fn check(rest: &str, is_write: bool) -> Command {
    let (handler, more) = first_word(rest);
    if handler.is_empty() || !more.is_empty() {
        return arguments();
    }
    let handler = handler.to_owned();
    Command::Call(match is_write {
        true => HandlerCall::CheckWrite { handler },
        false => HandlerCall::CheckRead { handler },
    })
}

fn farewell(rest: &str) -> HandlerAnswer {
    let mut answer = said(status::OK, "Goodbye!");
    if !rest.is_empty() {
        answer.messages.insert(0, "Bad command syntax".to_owned());
    }
    answer
}

fn wrong(code: u16, message: impl Into<String>) -> Command {
    Command::Wrong(said(code, message))
}

fn arguments() -> Command {
    wrong(status::SYNTAX, "Wrong number of arguments")
}

fn too_few() -> Command {
    Command::TooLong(said(status::SYNTAX, "Not enough data"))
}

fn too_much() -> Command {
    Command::TooLong(said(status::TOO_BIG, format!("Data too large; at most {DATA_MOST} bytes")))
}

/// Returns true for the first line of an HTTP request (RFC 9112 3), or the header that each has.
fn is_http(line: &str) -> bool {
    let version = line.trim_end().rsplit(' ').next().unwrap_or_default();
    let is_command = ["READ", "WRITE", "SET", "CHECK"]
        .iter()
        .any(|word| line.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word)));
    (version.starts_with("HTTP/") && !is_command)
        || line.get(..5).is_some_and(|head| head.eq_ignore_ascii_case("host:"))
}

/// An answer as it is sent.
pub fn written(answer: &HandlerAnswer) -> Vec<u8> {
    let HandlerAnswer { code, messages, data } = answer;
    let mut text = String::new();
    for (number, message) in messages.iter().enumerate() {
        let sign = if number + 1 < messages.len() { '-' } else { ' ' };
        text += &format!("{code}{sign}{}\r\n", printable(message));
    }
    if let Some(data) = data {
        text += &format!("DATA {}\r\n{data}", data.len());
    }
    text.into_bytes()
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '.' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// The commands in a text that arrives in pieces of this size.
    fn commands(text: &[u8], piece: usize) -> Vec<Command> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(64);
            let text = text.to_vec();
            let sending = tokio::spawn(async move {
                for piece in text.chunks(piece) {
                    // The reader may have left.
                    if client.write_all(piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            });
            let mut reader = Reader::new(server);
            let mut all = Vec::new();
            loop {
                let command = reader.command().await.unwrap();
                let is_last = matches!(
                    command,
                    Command::End | Command::Http | Command::Quit(_) | Command::TooLong(_)
                );
                all.push(command);
                if is_last {
                    break;
                }
            }
            drop(reader);
            sending.await.unwrap();
            all
        })
    }

    fn read(handler: &str, argument: &str) -> Command {
        let (handler, argument) = (handler.to_owned(), argument.to_owned());
        Command::Call(HandlerCall::Read { handler, argument })
    }

    fn write(handler: &str, value: &str) -> Command {
        let (handler, value) = (handler.to_owned(), value.to_owned());
        Command::Call(HandlerCall::Write { handler, value })
    }

    #[test]
    fn commands_are_those_of_click() {
        let handler = || "s.x".to_owned();
        for (text, expected) in [
            ("READ c.count\r\n", read("c.count", "")),
            ("  get  rt.lookup  1.2.3.4  5 \n", read("rt.lookup", "1.2.3.4  5")),
            ("WRITE s.switch 1\r", write("s.switch", "1")),
            ("set c.reset\n", write("c.reset", "")),
            ("READDATA rt.lookup 3\r\n1\r\n", read("rt.lookup", "1\r\n")),
            ("writedata s.x 4\na\nb\n", write("s.x", "a\nb\n")),
            ("SETDATA s.x 0\r\n", write("s.x", "")),
            (
                "WRITEUNTIL rt.ctrl END\r\nadd 1\r\nremove 2\r\nEND \r\n",
                write("rt.ctrl", "add 1\nremove 2\n"),
            ),
            ("READUNTIL s.x\nabc\n\n", read("s.x", "abc\n")),
            ("CHECKREAD s.x\n", Command::Call(HandlerCall::CheckRead { handler: handler() })),
            ("CHECKWRITE s.x\n", Command::Call(HandlerCall::CheckWrite { handler: handler() })),
            ("\r\n", Command::Nothing),
            ("help\r\n", Command::Help),
            // The last line need not end.
            ("READ c.count", read("c.count", "")),
            ("READ", arguments()),
            ("READDATA x\n", arguments()),
            ("READDATA x 1 2\n", arguments()),
            ("CHECKREAD\n", arguments()),
            ("WRITEDATA x y\n", wrong(500, "Syntax error in 'writedata'")),
            ("WRITEDATA x -1\n", wrong(500, "Syntax error in 'writedata'")),
            ("frob x\n", wrong(501, "Command 'FROB' unimplemented")),
            ("LLRPC c#80 2\nxy", wrong(501, "Cannot call LLRPC 'c#80' remotely")),
        ] {
            for piece in [1, 3, 1000] {
                let all = commands(text.as_bytes(), piece);
                assert_eq!(all[0], expected, "{text:?} {all:?}");
                assert_eq!(all[1..], [Command::End], "{text:?}");
            }
        }
        let quit = commands(b"QUIT now\r\nREAD x\r\n", 100);
        let [Command::Quit(answer)] = &quit[..] else { panic!("{quit:?}") };
        assert_eq!(written(answer), b"200-Bad command syntax\r\n200 Goodbye!\r\n");
    }

    #[test]
    fn commands_have_bounds() {
        let line = |length: usize| format!("READ {}\n", "x".repeat(length));
        assert!(matches!(&commands(line(LINE_MOST - 5).as_bytes(), 999)[0], Command::Call(_)));
        for text in [
            line(LINE_MOST),
            "x".repeat(10 * LINE_MOST),
            "READDATA x 65537\n".to_owned(),
            "WRITEDATA x 4294967295\n".to_owned(),
            format!("WRITEUNTIL x END\n{}", "a\n".repeat(DATA_MOST)),
            "WRITEDATA x 5\nabc".to_owned(),
            "WRITEUNTIL x END\nabc\n".to_owned(),
            format!("WRITEUNTIL x END\n{}END\nEND\n", "y".repeat(LINE_MOST + 100)),
        ] {
            let all = commands(text.as_bytes(), 4096);
            assert!(matches!(&all[..], [Command::TooLong(_)]), "{all:?}");
        }
        let most = format!("WRITEDATA x 65536\n{}", "y".repeat(DATA_MOST));
        assert_eq!(commands(most.as_bytes(), 4096)[0], write("x", &"y".repeat(DATA_MOST)));
    }

    #[test]
    fn lines_of_browsers_end_the_conversation() {
        for line in ["POST / HTTP/1.1\r\n", "GET /x HTTP/1.0\n", "\r\nHost: x\r\n"] {
            assert_eq!(commands(line.as_bytes(), 10).last(), Some(&Command::Http), "{line}");
        }
        assert_eq!(commands(b"READ x.y\n", 10)[0], read("x.y", ""));
    }

    #[test]
    fn answers_are_those_of_click() {
        let mut answer = said(200, "Read handler 'c.count' OK");
        answer.data = Some("12\r\n".to_owned());
        assert_eq!(written(&answer), b"200 Read handler 'c.count' OK\r\nDATA 4\r\n12\r\n");
        let answer = HandlerAnswer {
            code: 520,
            messages: vec!["Write handler 'x' error:".to_owned(), "a\r\n200 b".to_owned()],
            data: None,
        };
        assert_eq!(written(&answer), b"520-Write handler 'x' error:\r\n520 a..200 b\r\n");
    }

    proptest! {
        /// Nothing that a client sends is a panic, and the size of the pieces makes no difference.
        #[test]
        fn pieces_make_no_difference(
            text in proptest::collection::vec(prop_oneof![
                Just(b"READ a.b c\r\n".to_vec()), Just(b"WRITEDATA x 3\r\n".to_vec()), Just(b"READUNTIL y .\n".to_vec()),
                Just(b".\n".to_vec()), Just(b"\r".to_vec()), Just(b"\n".to_vec()), proptest::collection::vec(any::<u8>(), 0..6),
            ], 0..8),
            piece in 1..9usize,
        ) {
            let text = text.concat();
            prop_assert_eq!(commands(&text, piece), commands(&text, 1000));
        }
    }
}
