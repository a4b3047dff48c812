//! Lists of an interface's setting for what its host interface would do otherwise.

use super::super::value::Fields;

/// A setting that is a list: `proxy`, `dhcp_relay`.
pub(super) struct List<'a> {
    pub(super) key: &'a str,
    /// Description of a value, for errors.
    pub(super) expected: &'a str,
    /// Most elements, their name, and the way out.
    pub(super) most: (usize, &'a str, &'a str),
    /// The error where the interface has a host interface.
    pub(super) with_host: &'a str,
}

impl List<'_> {
    /// Reads the elements, each by `one`; `has_host`: the interface has a host interface.
    pub(super) fn read<T: PartialEq>(
        &self,
        fields: &mut Fields<'_, '_>,
        has_host: bool,
        one: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let key = self.key;
        let mut all = Vec::new();
        for text in fields.texts(key, self.expected) {
            match one(text) {
                Ok(element) if all.contains(&element) => {
                    fields.error(key, format!("{key}: \"{text}\" given twice; remove one"));
                }
                Ok(element) => all.push(element),
                Err(reason) => fields.error(key, format!("{key}: \"{text}\": {reason}")),
            }
        }
        let (most, of, way_out) = self.most;
        if all.len() > most {
            let count = all.len();
            fields.error(key, format!("{key}: {count} {of}, {most} is the most; {way_out}"));
        }
        if has_host && !all.is_empty() {
            fields.error(key, format!("{key}: {}", self.with_host));
        }
        all
    }
}
