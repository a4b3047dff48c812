"""keepalived in a namespace: VRRP with virtual MACs."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from .netns import stop_process, veth


def instance(name, interface, number, priority, addresses, interval=1, vmac=True):
    """A virtual router whose MAC is on a MACVLAN device of its own, or that has the interface's."""
    mac = f"use_vmac vrrp.{name}" if vmac else ""
    lines = "\n    ".join(addresses)
    return f"""
vrrp_instance {name} {{
  version 3
  interface {interface}
  virtual_router_id {number}
  priority {priority}
  advert_int {interval}
  {mac}
  virtual_ipaddress {{
    {lines}
  }}
}}
"""


def ends(switch, host, server):
    """The ends of two routers' networks: a host behind a switch with ports to both, whose gateway is the virtual router
    10.0.1.1 and fd00:1::1; a server with addresses that both lead to."""
    for address in ("10.9.9.9/32", "fd00:9::9/128"):
        server.run("ip", "address", "add", address, "dev", "lo")
    veth(switch, "host", host, "eth0")
    for end in ("one", "two", "host"):
        switch.run("ip", "link", "set", end, "master", "bridge")
    switch.run("ip", "link", "set", "bridge", "up")
    host.run("ip", "address", "add", "10.0.1.10/24", "dev", "eth0")
    host.run("ip", "address", "add", "fd00:1::10/64", "dev", "eth0", "nodad")
    host.run("ip", "route", "add", "default", "via", "10.0.1.1")
    host.run("ip", "-6", "route", "add", "default", "via", "fd00:1::1")


class Keepalived:
    """A keepalived with these virtual routers."""

    def __init__(self, namespace, config):
        self.directory = Path(tempfile.mkdtemp(prefix="turnpike-keepalived-"))
        file = self.directory / "keepalived.conf"
        file.write_text(f"global_defs {{\n  router_id {namespace.name}\n}}\n{config}")
        self._output = open(self.directory / "out", "wb")
        self.process = namespace.spawn(
            "keepalived", "-n", "-l", "-D", "-P", "-f", file,
            "-p", self.directory / "pid", "-r", self.directory / "vrrp.pid",
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
        )

    def log(self):
        """Its output."""
        return (self.directory / "out").read_text(errors="replace")

    def stop(self):
        """Ends it in order: it tells the others that it is master no more."""
        stop_process(self.process, timeout=60)

    def close(self):
        """Ends it and removes its files."""
        self.stop()
        self._output.close()
        shutil.rmtree(self.directory, ignore_errors=True)
