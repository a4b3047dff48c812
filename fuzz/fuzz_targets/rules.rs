//! Rules of filters, as configurations have them: refused, or compiled; the compiled filter decides each packet as the list
//! of rules does, and a device with its rules drops no other packets.
#![no_main]

use control::config::hostile_rules::check_rules;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_rules(bytes);
});
