#!/usr/bin/env python3
"""The crates in the binary: checks their licences, and writes what a package says about them.

    scripts/licences.py                     checks licences and sources by deny.toml
    scripts/licences.py --write DIRECTORY   the same, and writes third-party.txt (the texts of all licences) and
                                            sbom.cdx.json (CycloneDX) there

cargo-deny checks more by the same file (advisories, bans); this script needs Python and cargo only, and no network.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXTS = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.I)
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def metadata():
    """cargo's description of the crates for Linux on x86-64."""
    command = [
        "cargo", "metadata", "--locked", "--offline", "--format-version", "1",
        "--filter-platform", "x86_64-unknown-linux-gnu",
    ]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def is_linked(name, kinds):
    """True for a dependency whose code gets into the binary: a crate, or C source that a crate compiles."""
    return any(kind["kind"] is None or (kind["kind"] == "build" and name.endswith("-src")) for kind in kinds)


def linked(data):
    """The packages in the binary, by id, and their dependencies."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    packages = {package["id"]: package for package in data["packages"]}
    found, waiting = {}, [p["id"] for p in data["packages"] if p["name"] == "turnpike" and p["source"] is None]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found[one] = [
            dep["pkg"] for dep in nodes[one]["deps"] if is_linked(packages[dep["pkg"]]["name"], dep["dep_kinds"])
        ]
        waiting += found[one]
    return {one: packages[one] for one in sorted(found)}, found


def is_allowed(expression, allowed):
    """Evaluates an SPDX expression: AND binds more strongly than OR, which `/` once stood for."""
    tokens = re.findall(r"\(|\)|/|[\w.+-]+(?:\s+WITH\s+[\w.-]+)?", expression)

    def any_of():
        values = [all_of()]
        while tokens and tokens[0] in ("OR", "/"):
            tokens.pop(0)
            values.append(all_of())
        return any(values)

    def all_of():
        values = [one()]
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            values.append(one())
        return all(values)

    def one():
        token = tokens.pop(0)
        if token == "(":
            value = any_of()
            tokens.pop(0)
            return value
        return token in allowed

    return any_of()


def problems(packages, rules):
    """One line for each crate that deny.toml refuses."""
    allowed = set(rules["licenses"]["allow"])
    for package in packages.values():
        name = f"{package['name']} {package['version']}"
        if not is_allowed(package["license"] or "none", allowed):
            yield f"{name}: licence {package['license']} is not allowed by deny.toml; allowed: {', '.join(sorted(allowed))}"
        if package["source"] not in (None, REGISTRY):
            yield f"{name}: source {package['source']} is not crates.io"


def texts(package):
    """The texts of a crate's licences, those of C code in it included."""
    directory = Path(package["manifest_path"]).parent
    files = [*directory.iterdir(), *(directory.glob("*/*") if package["name"].endswith("-src") else [])]
    for file in sorted(files):
        if file.is_file() and TEXTS.match(file.name):
            yield file.read_text(errors="replace").strip().replace("\r\n", "\n")


def third_party(packages):
    """The crates of others, and each text of a licence once, with the crates that have it."""
    others = [package for package in packages.values() if package["source"]]
    lines = ["The program turnpike contains these crates of others, under these licences:", ""]
    lines += [f"  {p['name']} {p['version']}: {p['license']} ({p['repository'] or 'no repository'})" for p in others]
    owners = {}
    for package in others:
        for text in texts(package):
            owners.setdefault(text, []).append(package["name"])
    for text, names in owners.items():
        lines += ["", "=" * 100, ", ".join(sorted(set(names))), "=" * 100, "", text]
    return "\n".join(lines) + "\n"


def sbom(packages, dependencies):
    """The software bill of materials, as CycloneDX."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    sums = {(p["name"], p["version"]): p.get("checksum") for p in lock}

    def name(package):
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(package):
        of = {
            "type": "library", "bom-ref": name(package), "name": package["name"], "version": package["version"],
            "purl": name(package), "licenses": [{"expression": package["license"].replace("/", " OR ")}],
        }
        if checksum := sums.get((package["name"], package["version"])):
            of["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return of

    (program,) = [p for p in packages.values() if p["name"] == "turnpike"]
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": component(program) | {"type": "application"}},
        "components": [component(p) for p in packages.values() if p is not program],
        "dependencies": [
            {"ref": name(packages[one]), "dependsOn": sorted(name(packages[dep]) for dep in dependencies[one])}
            for one in packages
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="DIRECTORY")
    args = parser.parse_args()
    packages, dependencies = linked(metadata())
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    if refused := list(problems(packages, rules)):
        sys.exit("\n".join(refused))
    if args.write:
        args.write.mkdir(parents=True, exist_ok=True)
        (args.write / "third-party.txt").write_text(third_party(packages))
        (args.write / "sbom.cdx.json").write_text(json.dumps(sbom(packages, dependencies), indent=1) + "\n")
    print(f"licences of {len(packages)} crates: allowed")


if __name__ == "__main__":
    main()
