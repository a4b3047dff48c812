//! Words of messages: a count with its noun, and the known word that was probably meant.

/// A count with its noun: `1 route`, `2 routes`, `0 prefixes`.
pub fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        many if noun.ends_with('x') => format!("{many} {noun}es"),
        many => format!("{many} {noun}s"),
    }
}

/// The known word that was probably meant: at most two typing errors away, and not more than a
/// third of the word; else one that begins as the word does or with which the word begins.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).clamp(1, 2);
    let known: Vec<&str> = known.into_iter().collect();
    let near = known
        .iter()
        .map(|&candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate);
    let begins = |longer: &str, shorter: &str| shorter.len() >= 3 && longer.starts_with(shorter);
    near.or_else(|| known.into_iter().find(|c| begins(word, c) || begins(c, word)))
}

/// `; did you mean "x"?` or nothing, then the list of known words.
pub fn suggestion(word: &str, label: &str, known: &[&str]) -> String {
    let guess = did_you_mean(word, known.iter().copied())
        .map(|guess| format!("; did you mean \"{guess}\"?"))
        .unwrap_or_else(|| ";".to_owned());
    format!("{guess} {label}: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_no_plural() {
        assert_eq!([0, 1, 2].map(|n| count(n, "route")), ["0 routes", "1 route", "2 routes"]);
        assert_eq!([1, 2].map(|n| count(n, "prefix")), ["1 prefix", "2 prefixes"]);
    }

    #[test]
    fn typing_errors_are_recognised_and_other_words_are_not() {
        let known = ["device", "driver", "address", "mac", "mtu"];
        assert_eq!(did_you_mean("adress", known), Some("address"));
        assert_eq!(did_you_mean("addresses", known), Some("address"));
        assert_eq!(did_you_mean("deivce", known), Some("device"));
        assert_eq!(did_you_mean("mut", known), Some("mtu"));
        assert_eq!(did_you_mean("addr", known), Some("address"));
        assert_eq!(did_you_mean("macaddr", known), Some("mac"));
        assert_eq!(did_you_mean("colour", known), None);
    }
}
