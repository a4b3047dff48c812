//! The state of a subagent's session (RFC 2741, 7).
//!
//! ```text
//!   Open --> Response --> Register, one after another --> Response … --> ready: answers Get, GetNext, GetBulk
//! ```

use crate::pdu::{Header, Pdu, Range, VarBind};
use crate::{Error, Oid};

/// Seconds that the master waits for an answer.
const TIMEOUT: u8 = 10;

/// The priority of the subtrees: before those of the agent's own modules, which have 127.
const PRIORITY: u8 = 100;

/// Errors of answers.
const NOT_WRITABLE: u16 = 17;
const COMMIT_FAILED: u16 = 14;
const UNDO_FAILED: u16 = 15;
const GENERAL: u16 = 5;
const NOT_OPEN: u16 = 257;

/// The reason of a subagent that ends: `reasonShutdown`.
const SHUTDOWN: u8 = 5;

/// Returns the name of an error of a master's answer (RFC 2741, 6.2.16).
pub(crate) fn error_name(error: u16) -> String {
    let name = match error {
        256 => "openFailed",
        257 => "notOpen",
        259 => "indexAlreadyAllocated",
        261 => "notFound",
        262 => "unknownRegistration",
        263 => "duplicateRegistration: another subagent has the subtree; end it",
        264 => "unknownAgentCaps",
        266 => "parseError",
        267 => "requestDenied",
        268 => "processingError",
        other => return format!("error {other}"),
    };
    name.to_owned()
}

/// Objects that a master asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objects {
    /// These.
    Get(Vec<Oid>),
    /// The first of each range.
    Next(Vec<Range>),
    /// The first of each of the first ranges, so many of them, and the first several of each of the others.
    Bulk(usize, usize, Vec<Range>),
}

/// A request that is to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    transaction: u32,
    packet: u32,
    /// The objects.
    pub objects: Objects,
}

/// The consequence of a PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// These bytes are for the master.
    Send(Vec<u8>),
    /// This is asked for, see [`Session::answer`].
    Ask(Request),
    /// All subtrees are registered.
    Ready,
    /// Nothing.
    Nothing,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    /// Its number; `None` until the master has opened it.
    id: Option<u32>,
    /// Subtrees that are to be registered, the next one last.
    subtrees: Vec<Oid>,
    /// The packet that the master is to answer; `None` once all are registered.
    waits_for: Option<u32>,
    /// The number of the last packet.
    packet: u32,
}

impl Session {
    /// Begins a session with these subtrees. Returns the first bytes for the master.
    pub fn open(description: &str, subtrees: &[Oid]) -> (Self, Vec<u8>) {
        let subtrees = subtrees.iter().rev().cloned().collect();
        let mut session = Self { id: None, subtrees, waits_for: None, packet: 0 };
        let bytes = session.send(&Pdu::Open(TIMEOUT, description.to_owned()));
        session.waits_for = Some(session.packet);
        (session, bytes)
    }

    /// Returns true if all subtrees are registered.
    pub fn is_ready(&self) -> bool {
        self.waits_for.is_none()
    }

    /// Returns the bytes of a sign of life, which a master answers.
    pub fn ping(&mut self) -> Vec<u8> {
        self.send(&Pdu::Ping)
    }

    /// Returns the last bytes of a session that ends.
    pub fn close(&mut self) -> Vec<u8> {
        self.send(&Pdu::Close(SHUTDOWN))
    }

    fn send(&mut self, pdu: &Pdu) -> Vec<u8> {
        self.packet = self.packet.wrapping_add(1);
        pdu.write(self.id.unwrap_or(0), 0, self.packet)
    }

    /// Takes a PDU of the master.
    ///
    /// # Errors
    /// The session has ended: the master has closed it, or refuses what it needs.
    pub fn receive(&mut self, header: &Header, pdu: Pdu) -> Result<Step, Error> {
        let Header { transaction, packet, .. } = *header;
        let ask = |objects| Ok(Step::Ask(Request { transaction, packet, objects }));
        match pdu {
            Pdu::Response(error, _, _) => return self.take_answer(header, error),
            Pdu::Close(reason) => return Err(Error::Closed(reason)),
            _ if self.id != Some(header.session) => return Ok(self.refuse(header, NOT_OPEN, 0)),
            Pdu::Get(names) => return ask(Objects::Get(names)),
            Pdu::GetNext(ranges) => return ask(Objects::Next(ranges)),
            Pdu::GetBulk(singles, repetitions, ranges) => {
                let singles = usize::from(singles).min(ranges.len());
                return ask(Objects::Bulk(singles, repetitions.into(), ranges));
            }
            Pdu::TestSet(count) => {
                // The place of the first object; without any there is nothing to refuse.
                let error = if count == 0 { 0 } else { NOT_WRITABLE };
                return Ok(self.refuse(header, error, u16::from(count > 0)));
            }
            // They never follow a refused test.
            Pdu::CommitSet => return Ok(self.refuse(header, COMMIT_FAILED, 0)),
            Pdu::UndoSet => return Ok(self.refuse(header, UNDO_FAILED, 0)),
            Pdu::CleanupSet => {}
            Pdu::Open(..) | Pdu::Register(..) | Pdu::Ping => {
                return Ok(self.refuse(header, GENERAL, 0));
            }
        }
        Ok(Step::Nothing)
    }

    fn refuse(&self, header: &Header, error: u16, index: u16) -> Step {
        let response = Pdu::Response(error, index, Vec::new());
        Step::Send(response.write(header.session, header.transaction, header.packet))
    }

    fn take_answer(&mut self, header: &Header, error: u16) -> Result<Step, Error> {
        if self.waits_for != Some(header.packet) {
            // That of a ping, or of a session before.
            return if error == 0 { Ok(Step::Nothing) } else { Err(Error::Refused(error)) };
        }
        if error != 0 {
            return Err(Error::Refused(error));
        }
        self.id.get_or_insert(header.session);
        let Some(subtree) = self.subtrees.pop() else {
            self.waits_for = None;
            return Ok(Step::Ready);
        };
        let bytes = self.send(&Pdu::Register(PRIORITY, subtree));
        self.waits_for = Some(self.packet);
        Ok(Step::Send(bytes))
    }

    /// Returns the bytes of the answer to a request: its objects, in order.
    pub fn answer(&self, request: &Request, objects: Vec<VarBind>) -> Vec<u8> {
        let response = Pdu::Response(0, 0, objects);
        response.write(self.id.unwrap_or(0), request.transaction, request.packet)
    }

    /// Returns the bytes of the answer to a request that cannot be answered.
    pub fn fail(&self, request: &Request) -> Vec<u8> {
        let response = Pdu::Response(GENERAL, 1, Vec::new());
        response.write(self.id.unwrap_or(0), request.transaction, request.packet)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Value;
    use crate::pdu::HEADER;

    fn oid() -> Oid {
        Oid::new(&[1, 3, 6, 1, 2, 1, 2])
    }

    /// Header and payload of bytes.
    fn parts(bytes: &[u8]) -> (Header, &[u8]) {
        (Header::read(bytes.first_chunk().unwrap()).unwrap(), &bytes[HEADER..])
    }

    fn receive(session: &mut Session, bytes: &[u8]) -> Result<Step, Error> {
        let (header, payload) = parts(bytes);
        session.receive(&header, Pdu::read(&header, payload)?)
    }

    fn ok(session: u32, packet: u32) -> Vec<u8> {
        Pdu::Response(0, 0, vec![]).write(session, 0, packet)
    }

    fn ready() -> Session {
        let (mut session, first) = Session::open("router", &[oid(), oid().with(&[1])]);
        assert_eq!((first[1], parts(&first).0.packet), (1, 1));
        for packet in [1, 2] {
            let Ok(Step::Send(register)) = receive(&mut session, &ok(42, packet)) else { panic!() };
            assert_eq!((register[1], parts(&register).0.session), (3, 42));
            assert!(!session.is_ready());
        }
        assert_eq!(receive(&mut session, &ok(42, 3)), Ok(Step::Ready));
        assert!(session.is_ready());
        session
    }

    #[test]
    fn subtrees_are_registered_one_after_another() {
        ready();
        let (mut session, _) = Session::open("router", &[oid()]);
        let refused = Pdu::Response(263, 0, vec![]).write(0, 0, 1);
        let error = receive(&mut session, &refused).unwrap_err();
        assert_eq!(error, Error::Refused(263));
        assert!(error.to_string().contains("duplicateRegistration"), "{error}");
    }

    #[test]
    fn requests_are_answered_with_their_numbers() {
        let mut session = ready();
        let get = Pdu::Get(vec![oid()]).write(42, 7, 8);
        let Ok(Step::Ask(request)) = receive(&mut session, &get) else { panic!() };
        assert_eq!(request.objects, Objects::Get(vec![oid()]));
        let object = VarBind { name: oid(), value: Value::Counter64(9) };
        let bytes = session.answer(&request, vec![object.clone()]);
        let (header, payload) = parts(&bytes);
        assert_eq!((header.session, header.transaction, header.packet), (42, 7, 8));
        assert_eq!(Pdu::read(&header, payload), Ok(Pdu::Response(0, 0, vec![object])));
        assert_eq!(parts(&session.fail(&request)).0.packet, 8);
    }

    #[test]
    fn nothing_is_written() {
        let mut session = ready();
        let error = |session: &mut Session, pdu: &Pdu| match receive(session, &pdu.write(42, 7, 8))
        {
            Ok(Step::Send(bytes)) => {
                let (header, payload) = parts(&bytes);
                match Pdu::read(&header, payload) {
                    Ok(Pdu::Response(error, ..)) => Some(error),
                    _ => None,
                }
            }
            _ => None,
        };
        assert_eq!(error(&mut session, &Pdu::TestSet(2)), Some(17));
        assert_eq!(error(&mut session, &Pdu::CommitSet), Some(14));
        assert_eq!(error(&mut session, &Pdu::UndoSet), Some(15));
        assert_eq!(error(&mut session, &Pdu::CleanupSet), None);
        let other = Pdu::Ping.write(41, 7, 8);
        assert!(matches!(receive(&mut session, &other), Ok(Step::Send(_))));
    }

    #[test]
    fn the_master_ends_a_session() {
        let mut session = ready();
        assert_eq!(receive(&mut session, &Pdu::Close(5).write(42, 0, 1)), Err(Error::Closed(5)));
        assert_eq!(session.close()[1], 2);
        let ping = session.ping();
        let answer = ok(42, parts(&ping).0.packet);
        assert_eq!(receive(&mut session, &answer), Ok(Step::Nothing));
        // One that the master has forgotten.
        let unknown = Pdu::Response(257, 0, vec![]).write(42, 0, 99);
        assert_eq!(receive(&mut session, &unknown), Err(Error::Refused(257)));
    }

    proptest! {
        #[test]
        fn whatever_a_master_sends_is_survived(kinds in prop::collection::vec((0..20u8, any::<[u8; 3]>(), prop::collection::vec(any::<u8>(), 0..60)), 0..20)) {
            let mut session = ready();
            for (kind, [flags, id, packet], payload) in kinds {
                let mut bytes = vec![1, kind, flags, 0];
                for byte in [id, 0, packet] {
                    bytes.extend([0, 0, 0, byte]);
                }
                bytes.extend([0; 4]);
                bytes.extend(payload);
                if let Ok(Step::Ask(request)) = receive(&mut session, &bytes) {
                    prop_assert!(!session.fail(&request).is_empty());
                }
            }
        }
    }
}
