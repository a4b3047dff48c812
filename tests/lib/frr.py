"""Stock FRR in a namespace: the requested daemons, with their own sockets and files."""

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from .netns import stop_process, wait_for

_LIBRARY = Path("/usr/lib/frr")
_MODULES = "/usr/lib/x86_64-linux-gnu/frr/modules"

# Common beginning of every daemon's configuration. The "traditional" defaults keep FRR's own timers.
_HEAD = "frr defaults traditional\nhostname {name}\nlog timestamp precision 3\n"

# Room for a burst of a whole table: the value of the package's /etc/frr/daemons.
_NETLINK_BUFFER = 90_000_000


class Frr:
    """zebra and the protocol daemons named in `config`, a text for each: `{"zebra": "…", "bgpd": "…"}`.

    They run in the foreground as children of the test and find each other by sockets in a
    directory of their own, so that any number of such sets run beside each other.
    """

    def __init__(self, namespace, config, zebra_options=()):
        self.namespace = namespace
        self.directory = Path(tempfile.mkdtemp(prefix="turnpike-frr-"))
        # The daemons change to FRR's own user.
        shutil.chown(self.directory, "frr", "frr")
        self.config = {"zebra": "", **config}
        self.zebra_options = list(map(str, zebra_options))
        self.daemons = {}
        try:
            for name in self.config:
                self.start(name)
        except BaseException:
            self.close()
            raise

    def start(self, name, options=None):
        """Starts one of the daemons and waits until it answers."""
        config = self.directory / f"{name}.conf"
        config.write_text(_HEAD.format(name=self.namespace.name) + self.config[name])
        config.chmod(0o644)
        directory = self.directory
        arguments = [
            "-f", config, "-i", directory / f"{name}.pid", "-P", 0,
            "-z", directory / "zserv.api", "--vty_socket", directory,
            "--log", f"file:{directory}/{name}.log", "--log-level", "info",
        ]
        if name == "zebra":
            arguments += ["-s", _NETLINK_BUFFER, "--moduledir", _modules()]
            arguments += self.zebra_options if options is None else options
        if name == "bfdd":
            arguments += self._bfdd_socket()
        output = open(directory / f"{name}.out", "ab")
        self.daemons[name] = self.namespace.spawn(
            _LIBRARY / name, *arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )
        output.close()
        vty = directory / f"{name}.vty"
        wait_for(lambda: vty.exists() or self.daemons[name].poll() is not None, 20)
        if self.daemons[name].poll() is not None or not vty.exists():
            raise RuntimeError(f"{name} does not start:\n{self.log(name)}")
        # The socket exists before the daemon listens on it.
        if not wait_for(lambda: self.vtysh("show version", daemon=name, check=False)[0] == 0, 20, 0.05):
            raise RuntimeError(f"{name} does not answer:\n{self.log(name)}")

    def _bfdd_socket(self):
        """Options that give bfdd a control socket of its own: since FRR 10 only its directory can be named."""
        if version() < (10,):
            return ["--bfdctl", self.directory / "bfdd.sock"]
        space = Path("/var/run/frr", self.directory.name)
        space.mkdir(parents=True, exist_ok=True)
        shutil.chown(space, "frr", "frr")
        return ["-N", space.name]

    def reconnected(self, name="bgp"):
        """Waits until a daemon has found a zebra that was started again; it tries every ten seconds."""
        return wait_for(lambda: name in self.vtysh("show zebra client summary", daemon="zebra"), 25, 0.2)

    def log(self, name):
        """Log and output of a daemon."""
        files = (self.directory / f"{name}.log", self.directory / f"{name}.out")
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def vtysh(self, *commands, daemon=None, check=True, timeout=120):
        """Runs vtysh commands; returns its output, or with `check=False` (exit status, output)."""
        argv = ["vtysh", "--vty_socket", str(self.directory)]
        argv += ["-d", daemon] if daemon else []
        for command in commands:
            argv += ["-c", command]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
        if not check:
            return done.returncode, done.stdout
        if done.returncode != 0 or "% " in done.stdout[:200]:
            raise RuntimeError(f"vtysh {commands}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def json(self, command, daemon=None):
        """The answer of a `show … json` command."""
        return json.loads(self.vtysh(command + " json", daemon=daemon) or "{}")

    def configure(self, *lines, daemon=None):
        """Changes the running configuration."""
        self.vtysh("configure terminal", *lines, daemon=daemon)

    def pid(self, name):
        """A daemon's process id."""
        return self.daemons[name].pid

    def stop(self, name, kill=False):
        """Ends one daemon by SIGTERM, or by SIGKILL."""
        process = self.daemons.pop(name)
        if kill:
            process.kill()
        stop_process(process, timeout=60)
        for leftover in (f"{name}.vty", f"{name}.pid"):
            (self.directory / leftover).unlink(missing_ok=True)

    def close(self):
        """Ends all daemons, zebra last, and removes their files."""
        # A finished test needs no orderly shutdown, which takes long with a large table.
        for name in reversed(list(self.daemons)):
            self.stop(name, kill=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(Path("/var/run/frr", self.directory.name), ignore_errors=True)


@functools.cache
def version():
    """FRR's version as numbers: (8, 4, 4)."""
    said = subprocess.run([_LIBRARY / "zebra", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"version (\d+(?:\.\d+)*)", said)[1].split(".")))


def _modules():
    """The directory of FRR's modules, by the package's multiarch name."""
    if os.path.isdir(_MODULES):
        return _MODULES
    found = sorted(Path("/usr/lib").glob("*/frr/modules"))
    return str(found[0]) if found else _MODULES


def bgp(local_as, router_id, neighbours, families=("ipv4", "ipv6"), extra=""):
    """bgpd's configuration: `neighbours` are `{address: (AS, more lines…)}`; each speaks the family
    of its address."""
    lines = [f"router bgp {local_as}", f" bgp router-id {router_id}", " no bgp ebgp-requires-policy",
             " no bgp default ipv4-unicast", " bgp bestpath as-path multipath-relax"]
    for address, (remote_as, *more) in neighbours.items():
        lines += [f" neighbor {address} {line}" for line in (f"remote-as {remote_as}", "timers connect 1", *more)]
    for family in families:
        lines.append(f" address-family {family} unicast")
        members = [address for address in neighbours if (":" in address) == (family == "ipv6")]
        lines += [f"  neighbor {address} activate" for address in members]
        lines += [" exit-address-family"]
    return "\n".join(lines) + f"\n{extra}\n"
