"""net-snmp's agent in a namespace, and its clients."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from .netns import stop_process, wait_for

_CONFIG = """
master agentx
agentXSocket {socket}
agentaddress udp:127.0.0.1:{port}
rocommunity public
rwcommunity private
"""


class Snmpd:
    """`snmpd` as the master of subagents."""

    def __init__(self, namespace, port=1161):
        self.namespace, self.port = namespace, port
        self.directory = Path(tempfile.mkdtemp(prefix="turnpike-snmpd-"))
        self.socket = self.directory / "agentx"
        (self.directory / "snmpd.conf").write_text(_CONFIG.format(socket=self.socket, port=port))
        self.process = None
        self.start()

    def start(self):
        """Starts it, again as well."""
        env = dict(os.environ, SNMP_PERSISTENT_DIR=str(self.directory / "persistent"), MIBS="")
        with open(self.directory / "log", "ab") as log:
            self.process = self.namespace.spawn(
                "snmpd", "-f", "-Lo", "-C", "-c", self.directory / "snmpd.conf", "-r", stdout=log, stderr=log, env=env)
        assert wait_for(lambda: f":{self.port} " in self.namespace.run("ss", "-Hnlu").stdout, 20)

    def kill(self):
        """Ends it without a word to its subagents."""
        self.process.kill()
        self.process.wait()

    def run(self, program, *arguments, community="public", check=True):
        """Runs a client; returns its lines as identifiers, types and values."""
        done = self.namespace.run(
            "env", "MIBS=", program, "-v2c", "-c", community, "-On", "-Ox", "-t", "5", "-r", "3", f"127.0.0.1:{self.port}", *arguments,
            check=check)
        return re.findall(r"^\.([\d.]+) = (?:(\S+?): )?(.*?)\s*$", done.stdout, re.M) if check else done.stdout

    def walk(self, oid, bulk=False):
        """The objects below an identifier, in order, by the rest of their identifiers."""
        found = self.run("snmpbulkwalk" if bulk else "snmpwalk", oid)
        inner = {name[len(oid):].lstrip("."): value for name, _, value in found if name.startswith(oid + ".")}
        assert len(inner) == len(found) or "No Such" in found[0][2], found
        return inner

    def log(self):
        """Its output."""
        return (self.directory / "log").read_text(errors="replace")

    def close(self):
        """Removes what it has left."""
        stop_process(self.process)
        shutil.rmtree(self.directory, ignore_errors=True)
