"""BIRD 2 in a namespace."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from .netns import stop_process, wait_for


class Bird:
    """A BIRD with a configuration, and files beside it (`include "NAME";` finds them)."""

    def __init__(self, namespace, config, files=None):
        self.namespace = namespace
        self.directory = Path(tempfile.mkdtemp(prefix="turnpike-bird-"))
        self.file = self.directory / "bird.conf"
        for name, content in (files or {}).items():
            (self.directory / name).write_text(content)
        self.file.write_text(f'log "{self.directory}/log" all;\n{config}')
        self._socket = self.directory / "bird.ctl"
        self._output = open(self.directory / "out", "wb")
        self.process = namespace.spawn(
            "bird", "-f", "-c", self.file, "-s", self._socket, "-P", self.directory / "bird.pid",
            cwd=self.directory, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
        )
        # A large table is read before BIRD answers.
        wait_for(lambda: self._socket.exists() or self.process.poll() is not None, 120)
        if self.process.poll() is not None or not self._socket.exists():
            said = self.log()
            self.close()
            raise RuntimeError(f"bird does not start:\n{said}")

    def log(self):
        """Log and output of BIRD."""
        files = (self.directory / "log", self.directory / "out")
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def control(self, *words, timeout=120):
        """Runs a `birdc` command and returns its output."""
        argv = ["birdc", "-s", str(self._socket), *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0 or re.search(r"^(syntax error|runtime error)", done.stdout, re.M):
            raise RuntimeError(f"birdc {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def is_up(self, protocol):
        """Returns true if a BGP session (or another protocol with this state) is established."""
        return "Established" in self.control("show", "protocols", protocol)

    def stop(self, kill=False):
        """Ends it; with SIGTERM, BIRD removes its routes from the kernel."""
        if kill:
            self.process.kill()
        stop_process(self.process, timeout=60)

    def close(self):
        """Ends it and removes its files."""
        self.stop(kill=True)
        self._output.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def static_routes(prefixes):
    """Lines of a static protocol that hold these prefixes, to be exported."""
    return "".join(f"route {prefix} blackhole;\n" for prefix in prefixes)


def announcer(local_as, address4, peer4, address6, peer6, tables):
    """A speaker's configuration and files: it announces `tables`, a list of prefixes for each name,
    over IPv4 and IPv6 sessions `bgp4` and `bgp6`. A table is withdrawn by `disable NAME` and comes
    back by `enable NAME`."""
    config = [f"router id {address4};", "protocol device { }"]
    files = {}
    for name, prefixes in tables.items():
        family = "ipv6" if ":" in prefixes[0] else "ipv4"
        files[f"{name}.conf"] = static_routes(prefixes)
        config.append(f'protocol static {name} {{\n{family};\ninclude "{name}.conf";\n}}')
    for number, address, peer in ((4, address4, peer4), (6, address6, peer6)):
        config.append(
            f"protocol bgp bgp{number} {{ local {address} as {local_as}; neighbor {peer} external;\n"
            "connect delay time 1; connect retry time 1; error wait time 1, 2;\n"
            f"ipv{number} {{ import none; export all; next hop self; }}; }}"
        )
    return "\n".join(config) + "\n", files
