//! The text of handlers, as Click writes it.

use control::config::Element;

use crate::handlers::Handler;

/// A line each.
pub(super) fn lines(items: impl Iterator<Item: std::fmt::Display>) -> String {
    items.map(|item| format!("{item}\n")).collect()
}

/// Names and access, as Click lists them.
pub(super) fn listed<'a>(all: impl Iterator<Item = &'a Handler>) -> String {
    lines(all.map(|handler| format!("{}\t{}", handler.name, handler.access())))
}

/// The configuration in Click's language, without compound elements.
pub(super) fn configuration(elements: &[Element]) -> String {
    let mut text = String::new();
    for Element { name, class, config, .. } in elements {
        text += &match config.is_empty() {
            true => format!("{name} :: {class};\n"),
            false => format!("{name} :: {class}({config});\n"),
        };
    }
    let wires = elements.iter().flat_map(|from| from.to.iter().map(move |wire| (from, wire)));
    for (from, wire) in wires {
        text += &format!("{} [{}] -> [{}] {};\n", from.name, wire.output, wire.input, wire.to);
    }
    text
}

/// The ports of an element, as Click lists them.
pub(super) fn ports(element: &Element, all: &[Element]) -> String {
    let list = |directions: &[String], what: &str, ends: &dyn Fn(usize) -> Vec<String>| {
        let count = directions.len();
        let plural = if count == 1 { "" } else { "s" };
        let line = |(port, direction): (usize, &String)| {
            format!("{direction}\t-\t{}\n", ends(port).join(", "))
        };
        let all: String = directions.iter().enumerate().map(line).collect();
        format!("{count} {what}{plural}\n{all}")
    };
    let inputs = |port: usize| {
        let wires = all.iter().flat_map(|from| from.to.iter().map(move |wire| (from, wire)));
        let here = wires.filter(|(_, wire)| wire.to == element.name && wire.input == port);
        here.map(|(from, wire)| format!("{} [{}]", from.name, wire.output)).collect()
    };
    let outputs = |port: usize| {
        let here = element.to.iter().filter(|wire| wire.output == port);
        here.map(|wire| format!("{} [{}]", wire.to, wire.input)).collect()
    };
    list(&element.inputs, "input", &inputs) + &list(&element.outputs, "output", &outputs)
}

#[cfg(test)]
mod tests {
    use control::config::Wire;

    use super::*;

    fn element(name: &str, config: &str, to: &[(usize, usize, &str)]) -> Element {
        let wire =
            |&(output, input, to): &(usize, usize, &str)| Wire { output, input, to: to.into() };
        Element {
            line: 1,
            name: name.to_owned(),
            class: "C".to_owned(),
            config: config.to_owned(),
            inputs: vec!["push".to_owned()],
            outputs: vec!["push~".to_owned(); to.len()],
            to: to.iter().map(wire).collect(),
            step: None,
            counts: Vec::new(),
            port: None,
            ways: Vec::new(),
        }
    }

    #[test]
    fn the_configuration_is_one_in_clicks_language() {
        let all = [element("a", "1, 2", &[(0, 0, "b"), (1, 0, "b")]), element("b", "", &[])];
        let expected = "a :: C(1, 2);\nb :: C;\na [0] -> [0] b;\na [1] -> [0] b;\n";
        assert_eq!(configuration(&all), expected);
        assert_eq!(ports(&all[1], &all), "1 input\npush\t-\ta [0], a [1]\n0 outputs\n");
        let expected = "1 input\npush\t-\t\n2 outputs\npush~\t-\tb [0]\npush~\t-\tb [0]\n";
        assert_eq!(ports(&all[0], &all), expected);
    }
}
