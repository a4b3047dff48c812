//! Arguments of a compound element, matched to its parameters.

use crate::text;

/// Values of all parameters, or `None` if the arguments do not fit.
///
/// Parameters are (keyword, name): positional ones without a keyword first, then ones with a keyword, at the end
/// `__REST__`, which takes all that is left. All are mandatory.
pub(crate) fn assign(arguments: &[String], parameters: &[(String, String)]) -> Option<Vec<String>> {
    let positional = parameters.iter().take_while(|(keyword, _)| keyword.is_empty()).count();
    if positional == parameters.len() {
        return (arguments.len() == positional).then(|| arguments.to_vec());
    }
    let takes_rest = parameters.last().is_some_and(|(keyword, _)| keyword == "__REST__");
    let named = &parameters[positional..parameters.len() - usize::from(takes_rest)];
    let mut by_position = Vec::new();
    let mut by_keyword: Vec<Option<String>> = vec![None; named.len()];
    let mut rest = Vec::new();
    for argument in arguments {
        if by_position.len() < positional {
            by_position.push(argument.clone());
            continue;
        }
        let keyword = text::keyword(argument);
        let known = keyword.and_then(|(word, value)| {
            Some((named.iter().position(|(keyword, _)| keyword == word)?, value))
        });
        match known {
            Some((number, value)) => by_keyword[number] = Some(value.to_owned()),
            None if takes_rest => rest.push(argument.clone()),
            None => return None,
        }
    }
    let mut values = (by_position.len() == positional).then_some(by_position)?;
    values.extend(by_keyword.into_iter().collect::<Option<Vec<String>>>()?);
    values.extend(takes_rest.then(|| rest.join(", ")));
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(arguments: &str, keywords: &[&str]) -> Option<Vec<String>> {
        let parameters: Vec<_> =
            keywords.iter().map(|k| (k.to_string(), "x".to_string())).collect();
        assign(&text::split_arguments(arguments), &parameters)
    }

    fn values(values: &[&str]) -> Option<Vec<String>> {
        Some(values.iter().map(|value| value.to_string()).collect())
    }

    #[test]
    fn arguments_fit_by_position_keyword_and_rest() {
        assert_eq!(assigned("", &[]), values(&[]));
        assert_eq!(assigned("1", &[]), None);
        assert_eq!(assigned("1, 2", &["", ""]), values(&["1", "2"]));
        assert_eq!(assigned("1", &["", ""]), None);
        assert_eq!(assigned("1, K 2", &["", "K"]), values(&["1", "2"]));
        assert_eq!(assigned("K 1, K 2, K 3", &["", "K"]), values(&["K 1", "3"]));
        assert_eq!(assigned("1, L 2", &["", "K"]), None);
        assert_eq!(assigned("1", &["", "K"]), None);
        assert_eq!(
            assigned("1, L 2, K 3, 4", &["", "K", "__REST__"]),
            values(&["1", "3", "L 2, 4"])
        );
        assert_eq!(assigned("", &["__REST__"]), values(&[""]));
    }
}
