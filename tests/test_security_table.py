"""Every test that `SECURITY.md` names exists."""

import re

from test_rfc_table import ROOT, exists

TABLE = ROOT / "SECURITY.md"
COLUMNS = 4


def rows(text):
    """The attacks: the cells of each line of the table."""
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


def test_each_attack_has_a_test_that_exists():
    found = rows(TABLE.read_text())
    assert len(found) > 60
    wrong = []
    for row in found:
        assert len(row) == COLUMNS, row
        tests = [test for test in named(row[-1]) if "/" in test]
        wrong += [f"no test: {row[1]}"] if not tests else []
        wrong += [f"{row[1]}: {test} not found" for test in tests if not is_there(test)]
    assert wrong == []


def test_a_missing_test_is_noticed():
    (row,) = rows("| who | what | result | test |\n|---|---|---|---|\n| a | b | c | `tests/test_rfc.py::test_none`, `…::test_x` |")
    assert [*named(row[-1])] == ["tests/test_rfc.py::test_none", "tests/test_rfc.py::test_x"]
    assert not any(map(is_there, named(row[-1])))
