"""keepalived in a namespace: VRRP with virtual MACs."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from .netns import stop_process


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
