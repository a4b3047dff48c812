//! The parameters of operations: the fields of their requests, found in the JSON schema of [`Request`].
//!
//! Fields of an object within a request, such as the flow of a lookup, are parameters like the others. In a query a text
//! becomes what the field's schema asks for; a list is given by repeating its name.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::Operation;
use crate::Request;

/// Prefix of references to definitions.
pub(super) const DEFINITIONS: &str = "#/components/schemas/";

/// The schema of requests, and of the types in it by name.
static SCHEMA: LazyLock<(Value, Map<String, Value>)> = LazyLock::new(|| {
    let mut generator = generator();
    let root = generator.subschema_for::<Request>().to_value();
    (root, generator.take_definitions(true))
});

/// A generator of schemas for an OpenAPI document.
pub(super) fn generator() -> schemars::SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    settings.into_generator()
}

/// A parameter of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// The object in the request that has the field, if it is not the request itself.
    pub within: Option<String>,
    /// The schema of its value.
    pub schema: Value,
    /// True if it must be given.
    pub required: bool,
}

impl Parameter {
    /// Puts its value into a request.
    pub(super) fn put(&self, request: &mut Map<String, Value>, value: Value) {
        let Some(within) = &self.within else {
            request.insert(self.name.clone(), value);
            return;
        };
        let object = request.entry(within.clone()).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(object) = object {
            object.insert(self.name.clone(), value);
        }
    }

    fn is(&self, kind: &str) -> bool {
        match &self.schema["type"] {
            Value::String(own) => own == kind,
            Value::Array(all) => all.iter().any(|own| own == kind),
            _ => false,
        }
    }

    /// The value that texts of a query stand for.
    fn value(&self, texts: &[String]) -> Result<Value, String> {
        let name = &self.name;
        if self.is("array") {
            return Ok(texts.iter().cloned().map(Value::String).collect());
        }
        let [text] = texts else { return Err(format!("parameter \"{name}\": given twice")) };
        if self.is("boolean") {
            let value = text.parse::<bool>();
            let error = || format!("parameter \"{name}\": \"{text}\" is neither true nor false");
            return value.map(Value::Bool).map_err(|_| error());
        }
        if self.is("integer") {
            let value = text.parse::<u64>();
            let error = || format!("parameter \"{name}\": \"{text}\" is not a number");
            return value.map(Value::from).map_err(|_| error());
        }
        Ok(Value::String(text.clone()))
    }
}

/// Returns the parameters of an operation in the order of its fields.
pub fn of(operation: &Operation) -> Vec<Parameter> {
    let mut schema = resolved(&SCHEMA.0);
    for word in operation.words {
        let Some(inner) =
            variants(schema).find(|variant| variant["properties"].get(word).is_some())
        else {
            // A variant without fields is a text.
            return Vec::new();
        };
        schema = resolved(&inner["properties"][word]);
    }
    fields(schema).flat_map(|(name, schema, required)| parameter(name, schema, required)).collect()
}

fn parameter(name: &str, schema: &Value, required: bool) -> Vec<Parameter> {
    let own = |within, name: &str, schema: &Value, required| Parameter {
        name: name.to_owned(),
        within,
        schema: schema.clone(),
        required,
    };
    match object_of(schema) {
        Some(inner) => fields(inner)
            .map(|(field, schema, is_required)| {
                own(Some(name.to_owned()), field, schema, required && is_required)
            })
            .collect(),
        None => vec![own(None, name, schema, required)],
    }
}

/// The object of which a field is, or which it may be.
fn object_of(schema: &Value) -> Option<&Value> {
    let choices = schema["anyOf"].as_array().map_or(&[][..], Vec::as_slice);
    let all = std::iter::once(schema).chain(choices).map(resolved);
    all.into_iter().find(|schema| schema["properties"].is_object())
}

fn fields(schema: &Value) -> impl Iterator<Item = (&str, &Value, bool)> {
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    let fields = schema["properties"].as_object().into_iter().flatten();
    fields.map(move |(name, schema)| (name.as_str(), schema, required.iter().any(|of| of == name)))
}

fn variants(schema: &Value) -> impl Iterator<Item = &Value> {
    schema["oneOf"].as_array().into_iter().flatten()
}

fn resolved(schema: &Value) -> &Value {
    let name = schema["$ref"].as_str().and_then(|name| name.strip_prefix(DEFINITIONS));
    name.and_then(|name| SCHEMA.1.get(name)).unwrap_or(schema)
}

/// Adds the values of parameters that were left out.
pub(super) fn with_defaults(
    operation: &Operation,
    given: Map<String, Value>,
) -> Map<String, Value> {
    // A test reads them all.
    let mut fields: Map<String, Value> =
        serde_json::from_str(operation.defaults).unwrap_or_default();
    fields.extend(given);
    fields
}

/// The error for a parameter that an operation does not have.
pub fn unknown(name: &str, known: &[Parameter]) -> String {
    let known: Vec<_> = known.iter().map(|known| known.name.as_str()).collect();
    match known[..] {
        [] => format!("parameter \"{name}\": unknown; there are none"),
        _ => format!("parameter \"{name}\": unknown; known: {}", known.join(", ")),
    }
}

/// Splits the query of a URL into names and values.
///
/// # Errors
/// It is not encoded as a query.
pub fn pairs(query: &str) -> Result<Vec<(String, String)>, String> {
    let pair = |text: &str| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let decoded = decoded(name, true).zip(decoded(value, true));
        decoded.ok_or_else(|| format!("query \"{text}\": not encoded as UTF-8 with %"))
    };
    query.split('&').filter(|text| !text.is_empty()).map(pair).collect()
}

/// Returns the values of the parameters in a query.
///
/// # Errors
/// A parameter is unknown, given twice, or has a value of another type.
pub fn from_query(
    operation: &Operation,
    pairs: Vec<(String, String)>,
) -> Result<Map<String, Value>, String> {
    let known = of(operation);
    let mut texts: Vec<(&Parameter, Vec<String>)> = Vec::new();
    for (name, text) in pairs {
        let parameter = known.iter().find(|known| known.name == name);
        let parameter = parameter.ok_or_else(|| unknown(&name, &known))?;
        match texts.iter_mut().find(|(known, _)| *known == parameter) {
            Some((_, texts)) => texts.push(text),
            None => texts.push((parameter, vec![text])),
        }
    }
    let value = |(parameter, texts): (&Parameter, Vec<String>)| {
        Ok((parameter.name.clone(), parameter.value(&texts)?))
    };
    texts.into_iter().map(value).collect()
}

/// Decodes `%41` and, in queries, `+`; `None` if that is not UTF-8.
pub(super) fn decoded(text: &str, is_query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                let digit = |digit: u8| (digit as char).to_digit(16);
                bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
                rest = after;
            }
            b'+' if is_query => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Encodes a text for a path or a query.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| match plain(byte) {
            true => (byte as char).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

/// The names of all requests in the types.
#[doc(hidden)]
pub fn all_requests() -> BTreeSet<String> {
    let nested = ["show", "route", "neighbour", "set", "filter", "handler"];
    let mut all = BTreeSet::new();
    for (word, schema) in names(resolved(&SCHEMA.0)) {
        match schema.filter(|_| nested.contains(&word.as_str())) {
            Some(schema) => {
                all.extend(
                    names(resolved(schema)).iter().map(|(inner, _)| format!("{word} {inner}")),
                );
            }
            None => _ = all.insert(word),
        }
    }
    all
}

/// The variants of an enumeration, with the schema of their fields.
fn names(schema: &Value) -> Vec<(String, Option<&Value>)> {
    let mut all = Vec::new();
    for variant in variants(schema) {
        let texts = variant["enum"].as_array().into_iter().flatten();
        let texts = texts.chain(variant.get("const")).filter_map(Value::as_str);
        all.extend(texts.map(|text| (text.to_owned(), None)));
        all.extend(fields(variant).map(|(name, schema, _)| (name.to_owned(), Some(schema))));
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(method: &str, path: &str, query: &str) -> Result<String, String> {
        let (operation, values) = Operation::find(method, path).unwrap();
        let mut all = pairs(query)?;
        all.extend(values.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let request = operation.request(from_query(operation, all)?)?;
        Ok(serde_json::to_string(&request).unwrap())
    }

    #[test]
    fn texts_become_what_fields_are() {
        let is = |method, path, query, expected: &str| {
            assert_eq!(request(method, path, query).unwrap(), expected);
        };
        is("GET", "/v1/ports", "", r#"{"show":"ports"}"#);
        is(
            "GET",
            "/v1/routes",
            "prefix=10.0.0.0%2F8&longer=true",
            r#"{"show":{"routes":{"prefix":"10.0.0.0/8","longer":true,"all":false}}}"#,
        );
        is(
            "GET",
            "/v1/lookup",
            "address=10.0.2.2&from=10.0.1.2&protocol=6",
            r#"{"show":{"route":{"address":"10.0.2.2","flow":{"from":"10.0.1.2","protocol":6,"sport":0,"dport":0}}}}"#,
        );
        is("GET", "/v1/flows", "port=80", r#"{"show":{"flows":{"of":{"port":80},"most":100}}}"#);
        is(
            "DELETE",
            "/v1/sets/bad/elements",
            "elements=192.0.2.0/24&elements=::/0",
            r#"{"set":{"del":{"set":"bad","elements":["192.0.2.0/24","::/0"]}}}"#,
        );
        let words =
            r#"{"show":{"filter-verdict":{"name":"a b","packet":"udp 10.0.0.1 > 10.0.0.2"}}}"#;
        is("GET", "/v1/filters/a%20b/verdict", "packet=udp+10.0.0.1+%3E+10.0.0.2", words);
    }

    #[test]
    fn wrong_parameters_are_named() {
        let error = |path, query| request("GET", path, query).unwrap_err();
        assert_eq!(error("/v1/ports", "x=1"), "parameter \"x\": unknown; there are none");
        let known = "parameter \"x\": unknown; known: all, longer, prefix, source, vrf";
        assert_eq!(error("/v1/routes", "x"), known);
        let twice = "parameter \"vrf\": given twice";
        assert_eq!(error("/v1/routes", "vrf=a&vrf=b"), twice);
        let flag = "parameter \"all\": \"1\" is neither true nor false";
        assert_eq!(error("/v1/routes", "all=1"), flag);
        assert_eq!(error("/v1/flows", "most=-1"), "parameter \"most\": \"-1\" is not a number");
        assert_eq!(error("/v1/routes", "vrf=%f"), "query \"vrf=%f\": not encoded as UTF-8 with %");
        assert_eq!(error("/v1/lookup", ""), "missing field `address`");
        assert!(error("/v1/lookup", "address=x").contains("IP address"));
        // A number is the path's, whatever the query says.
        assert_eq!(error("/v1/history/3", "number=4"), "parameter \"number\": given twice");
    }

    #[test]
    fn defaults_are_parameters() {
        for operation in super::super::OPERATIONS {
            let defaults: Map<String, Value> = serde_json::from_str(operation.defaults).unwrap();
            for (name, _) in defaults {
                assert!(of(operation).iter().any(|known| known.name == name), "{name}");
            }
        }
    }

    proptest! {
        #[test]
        fn encoded_texts_are_decoded(text: String) {
            prop_assert_eq!(decoded(&encoded(&text), true), Some(text.clone()));
            prop_assert_eq!(decoded(&encoded(&text), false), Some(text));
        }

        #[test]
        fn any_text_is_decoded_or_refused(text in ".*") {
            let _ = (decoded(&text, true), pairs(&text));
        }
    }
}
