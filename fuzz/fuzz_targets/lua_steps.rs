//! Steps in Lua: whatever a script does, it writes nothing beside its packets, keeps no packet and ends no
//! forwarder. The scripts are made in `script::testing`, where the same is a test without a fuzzer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use script::testing::{hostile_script, run_hostile};

fuzz_target!(|bytes: &[u8]| run_hostile(&hostile_script(bytes)));
