//! Checks that this processor has the instructions for which the program was compiled.
//!
//! `.cargo/config.toml` selects them; without this check, a processor without them would end the
//! program with SIGILL somewhere.

use anyhow::{Result, bail};

/// Flags under Linux's names, each with true if the program may use its instructions.
const COMPILED: [(&str, bool); 7] = [
    ("ssse3", cfg!(target_feature = "ssse3")),
    ("sse4_2", cfg!(target_feature = "sse4.2")),
    ("avx2", cfg!(target_feature = "avx2")),
    ("bmi1", cfg!(target_feature = "bmi1")),
    ("bmi2", cfg!(target_feature = "bmi2")),
    ("fma", cfg!(target_feature = "fma")),
    ("movbe", cfg!(target_feature = "movbe")),
];

/// Fails if the processor lacks an instruction set. If Linux does not report the flags, none is
/// assumed to be lacking.
pub fn check() -> Result<()> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let missing = missing(&info, used());
    if !missing.is_empty() {
        bail!(
            "this program was compiled for processors with {}, which this one lacks; compile it by \
             RUSTFLAGS=\"-C target-cpu=native\" make",
            missing.join(", ")
        );
    }
    Ok(())
}

/// Returns the processor's flags that the program uses.
pub fn used() -> impl Iterator<Item = &'static str> {
    COMPILED.iter().filter(|(_, used)| *used).map(|(flag, _)| *flag)
}

/// Returns the flags that the first processor in `/proc/cpuinfo` lacks.
fn missing<'a>(info: &str, needed: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let Some(line) = info.lines().find(|line| line.starts_with("flags")) else { return Vec::new() };
    needed.filter(|flag| !line.split_whitespace().any(|has| has == *flag)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let info = "processor\t: 0\nflags\t\t: fpu sse4_2 avx bmi1\nbugs\t\t: avx2\n";
        assert_eq!(missing(info, ["avx2", "bmi1", "bmi2"].into_iter()), ["avx2", "bmi2"]);
        assert!(missing("Features\t: fp asimd\n", ["avx2"].into_iter()).is_empty());
    }

    #[test]
    fn the_tests_own_processor_will_do() {
        check().unwrap();
    }
}
