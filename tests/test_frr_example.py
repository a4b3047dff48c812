"""The example of three routers works as described in its README."""

import os
import subprocess

import pytest

from lib.kernel import forwarder
from lib.router import ROOT, binary


@pytest.mark.skipif(forwarder() != "turnpike", reason="it is an example of Turnpike")
def test_three_routers():
    done = subprocess.run(
        [ROOT / "examples/three-routers/run.sh"], env={**os.environ, "TURNPIKE": binary()},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150,
    )
    assert done.returncode == 0, done.stdout
    assert "All of it worked" in done.stdout
    # No namespaces are left behind.
    assert "three-routers" not in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
