//! Elements of a Click configuration.

use anyhow::{Context, Result};
use api::report::ClickElement;
use dataplane::words::suggestion;

use super::{columns, finish, right_align};

/// Formats a line an element, or one element with its handlers.
pub fn click(elements: &[ClickElement], name: Option<&str>) -> Result<String> {
    if elements.is_empty() {
        return Ok("no elements; turnpike run --click runs a configuration of Click".to_owned());
    }
    let Some(name) = name else { return Ok(all(elements)) };
    let found = elements.iter().find(|element| element.name == name);
    let element = found.with_context(|| {
        let names: Vec<_> = elements.iter().map(|element| element.name.as_str()).collect();
        format!("element \"{name}\" unknown{}", suggestion(name, "known", &names))
    })?;
    let mut text = all(std::slice::from_ref(element)) + "\n\nhandlers:";
    for (handler, access) in &element.handlers {
        text += &format!("\n  {name}.{handler} ({access})");
    }
    Ok(text)
}

fn all(elements: &[ClickElement]) -> String {
    let mut table = columns(&["element", "class", "becomes", "packets", "configuration"]);
    for element in elements {
        let ClickElement { name, class, config, count, .. } = element;
        let count = count.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let config = config.split_whitespace().collect::<Vec<_>>().join(" ");
        let short: String = config.chars().take(CONFIG_MOST).collect();
        let config = if short == config { config } else { short + "…" };
        table.add_row([name.clone(), class.clone(), becomes(element), count, config]);
    }
    right_align(&mut table, 3..4);
    finish(&table)
}

/// Most characters of a configuration string.
const CONFIG_MOST: usize = 60;

fn becomes(element: &ClickElement) -> String {
    match (&element.step, &element.port) {
        (_, Some(port)) => format!("port {port}"),
        (Some(step), None) => format!("step {step}"),
        (None, None) if element.is_route_table => "routes".to_owned(),
        (None, None) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_has_a_line_and_alone_its_handlers_too() {
        let counter = ClickElement {
            name: "c".into(),
            class: "Counter".into(),
            config: String::new(),
            step: Some("c".into()),
            port: None,
            is_route_table: false,
            count: Some(7),
            handlers: vec![("count".into(), "r".into()), ("reset".into(), "w".into())],
        };
        let device = ClickElement {
            name: "in".into(),
            class: "FromDevice".into(),
            config: "eth0,\n PROMISC true".into(),
            step: None,
            port: Some("eth0".into()),
            count: None,
            ..counter.clone()
        };
        let table = ClickElement {
            name: "rt".into(),
            config: "x".repeat(100),
            step: None,
            is_route_table: true,
            ..counter.clone()
        };
        let elements = [counter, device, table];
        let lines = |text: String| -> Vec<String> {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        let all = lines(click(&elements, None).unwrap());
        assert_eq!(all[0], "ELEMENT CLASS BECOMES PACKETS CONFIGURATION");
        assert_eq!(
            all[1..3],
            ["c Counter step c 7", "in FromDevice port eth0 - eth0, PROMISC true"]
        );
        assert!(all[3].starts_with("rt Counter routes 7 xxx") && all[3].ends_with("x…"), "{all:?}");
        let one = lines(click(&elements, Some("c")).unwrap());
        assert_eq!(one[3..], ["handlers:", "c.count (r)", "c.reset (w)"]);
        let unknown = click(&elements, Some("d")).unwrap_err().to_string();
        assert!(unknown.starts_with("element \"d\" unknown"), "{unknown}");
        assert!(click(&[], None).unwrap().contains("--click"));
    }
}
