//! Whatever is sent to the FPM listener, frames and messages are read without harm.
#![no_main]

use control::fpm::replay;
use control::netlink::Interfaces;
use dataplane::port::PortId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let by_index = [(1, None), (3, Some(PortId::FIRST.into()))].into();
    let interfaces = Interfaces { by_index, ..Interfaces::default() };
    replay(bytes, &interfaces);
});
