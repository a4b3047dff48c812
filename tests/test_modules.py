"""The modules of the data plane import each other in one direction, so that each can be read without those above it.

A top-level module counts as one with its children, and tests may import anything. Paths to other modules begin with
`crate::`. One counts as it is written: a module that takes a name from where it is re-exported imports that module.
"""

import graphlib
import re

from lib.router import ROOT

USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"\bcrate::(\w+)")
# The item that follows: up to the end of its block, or to a semicolon before one.
FOR_TESTS = re.compile(r'#\[cfg\((?:test|any\(test, feature = "testing"\))\)\]')


def code(text):
    """Rust without comments and without items that only tests have."""
    text = re.sub(r"//[^\n]*", "", text)
    while start := FOR_TESTS.search(text):
        text = text[:start.start()] + text[end_of_item(text, start.end()):]
    return text


def end_of_item(text, start):
    """The place behind the block or the semicolon that ends the item beginning here."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0 and text[place] in ";}":
            return place + 1
    return len(text)


def imported(text):
    """First names of the paths below `crate`: those of `use` with their braces resolved, and those within code."""
    braces = re.findall(r"\bcrate::\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    first = [re.match(r"\w+", part.strip()) for group in braces for part in re.sub(r"\{[^{}]*\}", "", group).split(",")]
    return set(PATH.findall(text)) | {name[0] for name in first if name}


def imports(source):
    """Each top-level module of a crate, with those that it imports."""
    root = code((source / "lib.rs").read_text())
    modules = set(re.findall(r"\bmod (\w+);", root))
    # `pub use module::Name` lets others say `crate::Name`.
    exported = {
        name: path.split("::")[0]
        for path in USE.findall(root)
        for name in re.findall(r"\w+", path)
        if path.split("::")[0] in modules and name not in modules
    }
    graph = {}
    for module in modules:
        files = [source / f"{module}.rs", *(source / module).rglob("*.rs")]
        texts = [code(file.read_text()) for file in files if file.exists() and file.stem != "tests"]
        names = {exported.get(name, name) for text in texts for name in imported(text)}
        graph[module] = names & modules - {module}
    return graph


def circle(graph):
    """The modules of a circle in their order, the first one again at the end; `None` if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # Ordered from the imported one to the one that imports it.
        return error.args[1][::-1]
    return None


def test_modules_of_the_data_plane_do_not_import_each_other_in_a_circle():
    graph = imports(ROOT / "crates/dataplane/src")
    assert {"batch", "graph", "tables"} <= graph["steps"], "the files are read"
    found = circle(graph)
    assert not found, f"modules of crates/dataplane import each other in a circle: {' -> '.join(found)}"


def test_a_circle_is_found(tmp_path):
    (tmp_path / "lib.rs").write_text("pub mod a;\npub mod b;\nmod c;\n#[cfg(test)]\nmod t;\npub use c::{Sea, other};\n")
    (tmp_path / "a.rs").write_text("use crate::{b::{X, Y}, t};\n// use crate::c;\n")
    (tmp_path / "b.rs").write_text("mod deep;\n#[cfg(test)]\nmod tests {\n    use crate::a::{A, B};\n}\n")
    (tmp_path / "c.rs").write_text("fn f(x: crate::a::A) {}\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/deep.rs").write_text("use super::super::b;\n")
    assert imports(tmp_path) == {"a": {"b"}, "b": set(), "c": {"a"}}
    assert circle(imports(tmp_path)) is None
    (tmp_path / "b/deep.rs").write_text("use crate::Sea;\n")
    found = circle(imports(tmp_path))
    assert set(found) == {"a", "b", "c"} and found[0] == found[-1]
    assert "a -> b -> c -> a" in " -> ".join(found + found[1:])
