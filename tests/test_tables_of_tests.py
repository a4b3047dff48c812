"""Every test that `SECURITY.md` and `docs/faults.md` name exists."""

import re

import pytest
from test_rfc_table import ROOT, exists

# Each table with its columns and the rows that it has at least.
TABLES = {"SECURITY.md": (4, 60), "docs/faults.md": (3, 15)}


def rows(text):
    """The cells of each line of the table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines[2:]]


def named(cell):
    """The tests of a row; `…::name` is of the file before."""
    file = None
    for test in re.findall(r"`([^`]+)`", cell):
        if test.startswith("…"):
            test = file + test[1:]
        file = test.split("::")[0]
        yield test


def is_there(test):
    """Of a whole file, it is enough that it exists."""
    return exists(test) if "::" in test else (ROOT / test).is_file()


@pytest.mark.parametrize("table", TABLES)
def test_each_line_has_a_test_that_exists(table):
    # The table of threads has a test of its own, which compares it with a router.
    found = rows((ROOT / table).read_text().split("\n## Threads")[0])
    columns, least = TABLES[table]
    assert len(found) >= least
    wrong = []
    for row in found:
        assert len(row) == columns, row
        tests = [test for test in named(row[-1]) if "/" in test]
        wrong += [f"no test: {row[0]}"] if not tests else []
        wrong += [f"{row[0]}: {test} not found" for test in tests if not is_there(test)]
    assert wrong == []


def test_a_missing_test_is_noticed():
    (row,) = rows("| who | what | result | test |\n|---|---|---|---|\n| a | b | c | `tests/test_rfc.py::test_none`, `…::test_x` |")
    assert [*named(row[-1])] == ["tests/test_rfc.py::test_none", "tests/test_rfc.py::test_x"]
    assert not any(map(is_there, named(row[-1])))
