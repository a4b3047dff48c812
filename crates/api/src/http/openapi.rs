//! The OpenAPI 3.1 document, made from the table of operations and the types.

use std::collections::BTreeSet;

use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::parameters::{self, DEFINITIONS, Parameter, generator};
use super::{
    Form, JSON, LINES, LUA, OPERATIONS, Operation, PCAP, PROBLEM, Problem, Role, SESSION, Session,
};
use crate::Request;
use crate::report::Route;

/// Parameters of pages beside those of the request.
const PAGES: [(&str, &str, &str); 2] = [
    (
        "limit",
        "integer",
        "About so many routes, 1 to 10000: all routes of a prefix are on one page",
    ),
    ("after", "string", "Routes behind this prefix: `next` of the page before"),
];

/// Returns the document.
pub fn document(version: &str) -> Value {
    let mut generator = generator();
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let entry = paths.entry(operation.path).or_insert_with(|| json!({}));
        entry[operation.method.name().to_lowercase()] = described(operation, &mut generator);
    }
    paths.insert(SESSION.to_owned(), session(&mut generator));
    let problem = generator.subschema_for::<Problem>().to_value();
    // Schemas of parameters refer to types of requests.
    generator.subschema_for::<Request>();
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Turnpike",
            "version": version,
            "license": { "name": env!("CARGO_PKG_LICENSE") },
            "description": "A running router. `x-role` is the role that an operation needs.",
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": {
                "Problem": {
                    "description": "The request failed",
                    "content": { PROBLEM: { "schema": problem } },
                },
            },
        },
    });
    keep_used(&mut document);
    document
}

/// Removes schemas to which nothing refers, such as that of all requests together.
fn keep_used(document: &mut Value) {
    let mut used = BTreeSet::new();
    let mut rest = vec![&document["paths"], &document["components"]["responses"]];
    while let Some(value) = rest.pop() {
        let to = value["$ref"].as_str().filter(|to| used.insert((*to).to_owned()));
        rest.extend(to.and_then(|to| document.pointer(&to[1..])));
        match value {
            Value::Array(all) => rest.extend(all),
            Value::Object(all) => rest.extend(all.values()),
            _ => {}
        }
    }
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.retain(|name, _| used.contains(&format!("{DEFINITIONS}{name}")));
    }
}

fn described(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let known = parameters::of(operation);
    let in_path = |name: &str| operation.path.contains(&format!("{{{name}}}"));
    let has_body = operation.method.has_body();
    let (in_url, in_body): (Vec<_>, Vec<_>) =
        known.iter().partition(|known| !has_body || in_path(&known.name));
    let mut all: Vec<Value> = in_url
        .into_iter()
        .map(|known| {
            in_place(operation, known, if in_path(&known.name) { "path" } else { "query" })
        })
        .collect();
    if operation.form == Form::Pages {
        all.extend(PAGES.map(|(name, kind, description)| {
            json!({ "name": name, "in": "query", "required": false, "description": description,
                    "schema": { "type": kind } })
        }));
    }
    let has_text = known.iter().any(|known| known.name == "text");
    if has_text {
        // With a body in Lua the other fields are in the query.
        let others = in_body.iter().filter(|known| known.name != "text");
        all.extend(others.map(|known| in_place(operation, known, "query")));
    }
    let mut described = json!({
        "operationId": operation.name().replace([' ', '-'], "_"),
        "summary": operation.summary,
        "x-role": operation.role.name(),
        "parameters": all,
        "responses": {
            "200": { "description": "Done", "content": content(operation, generator) },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    });
    if has_body {
        described["requestBody"] = body(operation, &in_body, has_text);
    }
    described
}

/// The client's own role, which is the HTTP server's affair and no request to the owner.
fn session(generator: &mut SchemaGenerator) -> Value {
    let schema = generator.subschema_for::<Session>().to_value();
    json!({ "get": {
        "operationId": "session",
        "summary": "The client, and its role",
        "x-role": Role::Read.name(),
        "parameters": [],
        "responses": {
            "200": { "description": "Done", "content": { JSON: { "schema": schema } } },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    } })
}

fn in_place(operation: &Operation, parameter: &Parameter, place: &str) -> Value {
    let mut schema = parameter.schema.clone();
    let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
    let default = default(operation, &parameter.name);
    let required = place == "path" || parameter.required && default.is_none();
    if let Some(default) = default {
        schema["default"] = default;
    }
    let mut described =
        json!({ "name": parameter.name, "in": place, "required": required, "schema": schema });
    if let Some(description) = description {
        described["description"] = description;
    }
    described
}

fn default(operation: &Operation, name: &str) -> Option<Value> {
    parameters::with_defaults(operation, Map::new()).remove(name)
}

fn body(operation: &Operation, fields: &[&Parameter], has_text: bool) -> Value {
    let is_required =
        |field: &&&Parameter| field.required && default(operation, &field.name).is_none();
    let required: Vec<&str> =
        fields.iter().filter(is_required).map(|field| field.name.as_str()).collect();
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.clone(), field.schema.clone())).collect();
    let mut example = serde_json::from_str(operation.example).unwrap_or_else(|_| json!({}));
    if let Some(example) = example.as_object_mut() {
        example.retain(|name, _| properties.contains_key(name));
    }
    let is_needed = !required.is_empty();
    let schema = json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    });
    let mut content = json!({ JSON: { "schema": schema, "example": example } });
    if has_text {
        content[LUA] = json!({ "schema": { "type": "string" } });
    }
    json!({ "required": is_needed, "content": content })
}

fn content(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let whole = |generator: &mut SchemaGenerator| (operation.answer)(generator).to_value();
    match operation.form {
        Form::Whole => json!({ JSON: { "schema": whole(generator) } }),
        Form::Pages => json!({
            JSON: { "schema": whole(generator) },
            LINES: { "schema": generator.subschema_for::<Route>().to_value() },
        }),
        Form::Capture => json!({ PCAP: { "schema": { "type": "string", "format": "binary" } } }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_lead_somewhere() {
        fn look(value: &Value, document: &Value) {
            if let Some(to) = value.get("$ref").and_then(Value::as_str) {
                assert!(document.pointer(&to[1..]).is_some(), "{to}");
            }
            match value {
                Value::Array(all) => all.iter().for_each(|one| look(one, document)),
                Value::Object(all) => all.values().for_each(|one| look(one, document)),
                _ => {}
            }
        }
        let document = document("1");
        look(&document, &document);
        assert_eq!(document["paths"]["/v1/apply"]["post"]["x-role"], "configure");
        let lookup = &document["paths"]["/v1/lookup"]["get"]["parameters"];
        assert_eq!(lookup.as_array().map(Vec::len), Some(6));
    }
}
