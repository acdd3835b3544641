//! libFuzzer target, see `xroce_fuzz_entry::calls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xroce_fuzz_entry::calls(data));
