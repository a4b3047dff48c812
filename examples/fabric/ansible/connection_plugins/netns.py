"""Runs commands in a network namespace of this machine: the fabric of examples/fabric/run.sh."""

import shlex

from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: netns
short_description: network namespaces of this machine
description: Runs commands as the local connection does, in the network namespace that ansible_host names.
options:
  namespace:
    description: the namespace
    # The last that is there counts.
    vars: [{name: inventory_hostname}, {name: ansible_host}]
extends_documentation_fragment: [connection_pipelining]
"""


class Connection(Local):
    """A connection to a namespace."""

    transport = "netns"

    def exec_command(self, cmd, in_data=None, sudoable=True):
        """Runs a command there; files are those of the machine."""
        inside = ["ip", "netns", "exec", self.get_option("namespace"), "/bin/sh", "-c", cmd]
        return super().exec_command(shlex.join(inside), in_data=in_data, sudoable=sudoable)
