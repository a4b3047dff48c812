//! Whatever an SNMP agent sends, PDUs are read, and the session answers or ends.
#![no_main]

use agentx::pdu::HEADER;
use agentx::{Header, Oid, Pdu, Session, Step};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (mut session, _) = Session::open("fuzz", &[Oid::new(&[1, 3, 6, 1, 2, 1, 2])]);
    let mut rest = bytes;
    while let Some(head) = rest.first_chunk::<HEADER>() {
        let Ok(header) = Header::read(head) else { return };
        let Some(payload) = rest.get(HEADER..HEADER + header.len) else { return };
        let Ok(pdu) = Pdu::read(&header, payload) else { return };
        rest = &rest[HEADER + header.len..];
        match session.receive(&header, pdu) {
            Ok(Step::Ask(request)) => assert!(!session.fail(&request).is_empty()),
            Ok(_) => {}
            Err(_) => return,
        }
    }
});
