"""`docs/rfc.md` lists the requirements that the router meets; this test checks the list.

Every file and every test that the table names must exist, every status must be one of four, and the
summary must count right. `python3 tests/test_rfc_table.py` writes the summary anew.
"""

import ast
import functools
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs/rfc.md"
RFCS = [
    791, 792, 826, 894, 1122, 1191, 1812, 2474, 2644, 2697, 2698, 2741, 2784, 2890, 3021, 3046, 3168, 3704, 4443, 4861, 4862, 5095,
    5798, 6164, 6438, 6633, 6864, 6980, 7011, 7567, 7608, 8200, 8201, 8415, 8504, "802.1Q", "802.1AX",
]
COLUMNS = ["clause", "requirement", "status", "file", "test"]
LEVEL = re.compile(r"\b(must|shall|should|may)\b", re.IGNORECASE)
# A status that needs a reason has it after a colon.
STATUSES = {"met": False, "met, no test": False, "not met": True, "not applicable": True}
SUMMARY_HEAD = ["RFC", *STATUSES, "all"]


class Row:
    """One requirement: its RFC and line in the table, and the five cells."""

    def __init__(self, rfc, line, cells):
        self.rfc, self.line = rfc, line
        self.clause, self.requirement, self.status, self.files, self.tests = cells

    @property
    def kind(self):
        return self.status.split(":")[0]

    def named(self, cell):
        """The text in backquotes."""
        return re.findall(r"`([^`]+)`", cell)

    def faults(self):
        """Errors in the row."""
        if not self.clause or not LEVEL.search(self.requirement):
            yield "no clause, or no level in the requirement"
        kind, colon, reason = self.status.partition(":")
        if kind not in STATUSES:
            yield f"unknown status {kind!r}; known: {', '.join(STATUSES)}"
        elif STATUSES[kind] != bool(colon and reason.strip()):
            yield f"{kind!r} {'needs a reason' if STATUSES[kind] else 'needs no reason'}"
        if kind.startswith("met") and not self.named(self.files):
            yield "met, but by no file"
        if (kind == "met") != bool(self.named(self.tests)) and kind in ("met", "met, no test"):
            yield f"{kind!r}, and the tests are {self.tests!r}"
        for file in self.named(self.files):
            if not (ROOT / file).is_file():
                yield f"no file {file}"
        for test in self.named(self.tests):
            if not exists(test):
                yield f"no test {test}"


def lines_of(text):
    """The rows of all tables: the heading they stand under, the line number, the cells."""
    heading = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            yield heading, number, [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(text):
    """The requirements, in order; anything else in a table of an RFC is an error."""
    found = []
    for heading, number, cells in lines_of(text):
        match = re.match(r"RFC (?P<rfc>\d+)\b|IEEE (?P<ieee>\S+)", heading)
        if not match or cells == COLUMNS:
            continue
        assert len(cells) == len(COLUMNS), f"{TABLE.name}:{number}: {len(cells)} cells: {cells}"
        found.append(Row(match["ieee"] or int(match["rfc"]), number, cells))
    return found


def counts(found):
    """The expected lines of the summary."""
    kinds = {rfc: Counter() for rfc in RFCS}
    for row in found:
        kinds.setdefault(row.rfc, Counter())[row.kind] += 1
    total = sum(kinds.values(), Counter())
    numbers = lambda counter: [str(counter[kind]) for kind in STATUSES] + [str(counter.total())]  # noqa: E731
    anchor = lambda rfc: f"rfc-{rfc}" if isinstance(rfc, int) else f"ieee-{rfc.replace('.', '').lower()}"  # noqa: E731
    # RFCs by number, then standards of the IEEE.
    order = sorted(kinds.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    lines = [[f"[{rfc}](#{anchor(rfc)})", *numbers(counter)] for rfc, counter in order]
    return [*lines, ["all", *numbers(total)]]


def summary(text):
    """The present lines of the summary."""
    return [cells for heading, _, cells in lines_of(text) if heading == "Summary" and cells != SUMMARY_HEAD]


@functools.cache
def rust_tests(file):
    """The functions in a Rust file after a test attribute, property tests included."""
    if not file.is_file():
        return frozenset()
    attributes = r"#\[test\]\n(?:\s*(?:#\[[^\n]*\]|//[^\n]*)\n)*\s*fn (\w+)\("
    return frozenset(re.findall(attributes, file.read_text()))


@functools.cache
def python_tests(file):
    """The tests in a Python file."""
    if not file.is_file():
        return frozenset()
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def exists(test):
    """Returns true if the test exists. `FILE::NAME`, for Python also `FILE::NAME[CASE]`: the id of a case or its part
    up to a colon."""
    file, _, name = test.partition("::")
    if not file.endswith(".py"):
        return name in rust_tests(ROOT / file)
    name, bracket, case = name.rstrip("]").partition("[")
    if name not in python_tests(ROOT / file):
        return False
    return not bracket or any(case in (one, one.split(":")[0]) for one in cases(Path(file).stem, name))


@functools.cache
def cases(module, name):
    """The ids of a test's cases as pytest makes them: those given, and the values joined."""
    function = getattr(__import__(module), name)
    found = set()
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            found |= set(mark.kwargs.get("ids") or ())
            for row in mark.args[1]:
                values = getattr(row, "values", row if isinstance(row, tuple) else (row,))
                found.add(getattr(row, "id", None) or "-".join(map(str, values)))
    return found


def test_every_rfc_has_its_table():
    assert {row.rfc for row in rows(TABLE.read_text())} == set(RFCS)


def test_every_row_can_be_believed():
    faults = [
        f"{TABLE.name}:{row.line}: RFC {row.rfc} {row.clause}: {fault}"
        for row in rows(TABLE.read_text()) for fault in row.faults()
    ]
    assert not faults, "\n".join(faults)


def test_the_summary_counts_right():
    text = TABLE.read_text()
    assert summary(text) == counts(rows(text)), f"run `python3 {Path(__file__).relative_to(ROOT)}`"


def test_no_requirement_stands_twice():
    seen = Counter((row.rfc, row.clause, row.requirement) for row in rows(TABLE.read_text()))
    assert not [row for row, count in seen.items() if count > 1]


# --- the checks themselves can fail ---------------------------------------------------------------


GOOD = ["5.3.1", "MUST decrement the TTL", "met", "`Makefile`",
        "`crates/dataplane/src/steps/ip4_ttl.rs::one_and_zero_expire`"]


def faults_with(**changes):
    cells = dict(zip(COLUMNS, GOOD)) | changes
    return list(Row(1812, 1, list(cells.values())).faults())


def test_a_row_that_lies_is_found():
    assert faults_with() == []
    assert faults_with(file="`no/such/file.rs`") == ["no file no/such/file.rs"]
    for test in (
        "crates/dataplane/src/steps/ip4_ttl.rs::no_such_test",
        # A function of the file, but no test.
        "crates/dataplane/src/steps/ip4_ttl.rs::process",
        "no/such/file.rs::one_and_zero_expire",
        "tests/test_drops.py::test_nothing",
        "tests/test_drops.py::with_byte",
        "tests/test_drops.py::test_drop[no such case]",
        "tests/no_such_file.py::test_drop",
    ):
        assert faults_with(test=f"`{test}`") == [f"no test {test}"]
    for test in (
        "crates/dataplane/src/steps/ip4_rewrite.rs::the_checksum_stays_right",
        "tests/test_drops.py::test_drop",
        "tests/test_drops.py::test_drop[ip4-version]",
        "tests/test_drops.py::test_drop[ip4-version: version 6]",
    ):
        assert faults_with(test=f"`{test}`") == []
    for changes in (
        {"status": "almost"}, {"status": "not met"}, {"status": "not applicable:"},
        {"status": "met: of course"}, {"status": "met, no test"}, {"test": ""}, {"file": ""},
        {"clause": ""}, {"requirement": "decrements the TTL"},
    ):
        assert len(faults_with(**changes)) == 1, changes
    assert faults_with(status="met, no test", test="") == []
    assert faults_with(status="not met: too hard", test="", file="") == []


def test_a_wrong_count_is_found():
    row = f"| {' | '.join(GOOD)} |\n"
    text = "## Summary\n| {} |\n|--|\n| [1812](#rfc-1812) | 1 | 0 | 0 | 0 | 1 |\n## RFC 1812\n{}"
    text = text.format(" | ".join(SUMMARY_HEAD), row)
    counted = [line for line in counts(rows(text)) if "1812" in line[0]]
    assert summary(text) == counted
    assert summary(text.replace("| 1 | 0", "| 2 | 0")) != counted
    assert [line for line in counts(rows(text + row)) if "1812" in line[0]] != counted


def write():
    """Writes the summary anew."""
    text = TABLE.read_text()
    head, rest = text.split("## Summary\n", 1)
    lines = [SUMMARY_HEAD, ["---", *["--:"] * (len(SUMMARY_HEAD) - 1)], *counts(rows(text))]
    after = rest[rest.index("\n## "):]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    TABLE.write_text(f"{head}## Summary\n\n{table}{after}")


if __name__ == "__main__":
    sys.exit(write())
