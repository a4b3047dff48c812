//! Flattened configurations, compared with Click's.
//!
//! For each `flatten/NAME.click` there is `NAME.flat`, the output of Click's own tool:
//!
//! ```text
//! click-flatten --expand-vars NAME.click > NAME.flat
//! ```
//!
//! Click was built from commit 9197a594b by `./configure --disable-linuxmodule --enable-userlevel`, then `make -C
//! tools/lib` and `make -C tools/click-flatten`.
//! For each `flatten/NAME.wrong.click` there is `NAME.wrong.txt`, our errors, each beside that of Click. Click prints
//! elements and connections in another form than we do, so its output is read and flattened here, and compared by
//! names.

use std::collections::BTreeSet;
use std::path::Path;

use click::{Errors, Flat, flatten, parse};

fn flat(name: &str, text: &str) -> Result<Flat, Errors> {
    flatten(&parse(name, text)?, &[])
}

fn elements(flat: &Flat) -> BTreeSet<String> {
    let line = |element: &click::Element| {
        format!("{} :: {}({})", element.name, element.class, element.arguments.join(", "))
    };
    flat.elements.iter().map(line).collect()
}

fn connections(flat: &Flat) -> BTreeSet<String> {
    let name = |index: usize| &flat.elements[index].name;
    let line = |connection: &click::Connection| {
        let (from, to) = (connection.from, connection.to);
        format!("{} [{}] -> [{}] {}", name(from.0), from.1, to.1, name(to.0))
    };
    flat.connections.iter().map(line).collect()
}

fn files(end: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flatten");
    let mut files: Vec<(String, String)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().ends_with(end))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().trim_end_matches(end).to_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn configurations_are_flattened_as_click_flattens_them() {
    let ours = files(".click");
    let clicks = files(".flat");
    let ours: Vec<_> = ours.into_iter().filter(|(name, _)| !name.ends_with(".wrong")).collect();
    assert_eq!(ours.len(), clicks.len());
    assert!(ours.len() > 5);
    for ((name, our), (clicks_name, click)) in ours.iter().zip(&clicks) {
        assert_eq!(name, clicks_name);
        let our = flat(name, our).unwrap();
        let click = flat(name, click).unwrap();
        assert_eq!(elements(&our), elements(&click), "{name}");
        assert_eq!(connections(&our), connections(&click), "{name}");
        assert_eq!(our.requirements, click.requirements, "{name}");
    }
}

#[test]
fn what_is_printed_is_read_as_the_same() {
    for (name, text) in files(".flat") {
        let first = flat(&name, &text).unwrap();
        let again = flat(&name, &first.to_string()).unwrap();
        assert_eq!(elements(&first), elements(&again), "{name}");
        assert_eq!(connections(&first), connections(&again), "{name}");
    }
}

#[test]
fn wrong_configurations_have_errors_with_places() {
    let wrong = files(".wrong.click");
    assert!(!wrong.is_empty());
    let expected: Vec<(String, String)> = files(".wrong.txt");
    for ((name, text), (expected_name, expected)) in wrong.iter().zip(&expected) {
        assert_eq!(name, expected_name);
        let errors = flat(&format!("{name}.click"), text).expect_err(name).to_string();
        let expected: Vec<&str> = expected.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(errors, expected.join("\n"), "{name}");
    }
}
