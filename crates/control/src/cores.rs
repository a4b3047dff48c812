//! Lists of cores as users and the kernel write them: `1,3-5`.

/// Reads a list of cores; they are ascending in the result, however they were written.
///
/// # Errors
/// What is wrong with the text, and how a list is written.
pub fn parse_cores(text: &str) -> Result<Vec<usize>, String> {
    /// More than any machine has; keeps "0-99999999999" from filling the memory.
    const CORES_MOST: usize = 4096;
    let mut cores = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>())
        else {
            return Err(format!("\"{part}\" is not a core or a range; write \"1,3-5\""));
        };
        if first > last {
            return Err(format!("range {part} ends before it begins; write {last}-{first}"));
        }
        if last >= CORES_MOST {
            return Err(format!("core {last} is beyond {}, the most", CORES_MOST - 1));
        }
        for core in first..=last {
            if cores.contains(&core) {
                return Err(format!("core {core} given twice; name each core once"));
            }
            cores.push(core);
        }
    }
    cores.sort_unstable();
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(parse_cores("1"), Ok(vec![1]));
        assert_eq!(parse_cores(" 5, 1-3 "), Ok(vec![1, 2, 3, 5]));
    }

    #[test]
    fn other_texts_are_explained() {
        for (text, reason) in [
            ("", "\"\" is not a core or a range; write \"1,3-5\""),
            ("1,,2", "\"\" is not a core or a range; write \"1,3-5\""),
            ("a", "\"a\" is not a core or a range; write \"1,3-5\""),
            ("1-", "\"1-\" is not a core or a range; write \"1,3-5\""),
            ("3-1", "range 3-1 ends before it begins; write 1-3"),
            ("1,0-2", "core 1 given twice; name each core once"),
            ("0-99999999999", "core 99999999999 is beyond 4095, the most"),
        ] {
            assert_eq!(parse_cores(text), Err(reason.to_owned()), "{text}");
        }
    }
}
