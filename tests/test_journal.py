"""The log in systemd's journal: entries with fields instead of lines (systemd.journal-fields(7))."""

import os
import socket
import tempfile

from lib.lab import PORTS, Hosts
from lib.netns import wait_for

# As systemd starts a service: standard error is a stream that it names, and the journal has its socket.
SERVICE = """
mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && mkdir /run/systemd/journal
mount --bind "$0" /run/systemd/journal
export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2)
exec "$@"
"""


def entries(journal):
    """The entries that have come, as dictionaries."""
    while True:
        try:
            # The first is empty: by it the router finds out that there is a journal.
            if entry := dict(fields(journal.recv(65536))):
                yield entry
        except BlockingIOError:
            return


def fields(entry):
    """The fields of an entry: KEY=VALUE, or KEY, a length of 8 bytes, and a value of any bytes (systemd's native
    journal protocol)."""
    while entry:
        line, _, rest = entry.partition(b"\n")
        key, equals, value = line.partition(b"=")
        if not equals:
            length = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + length], rest[9 + length :]
        yield key.decode(), value.decode()
        entry = rest


def test_entries_have_fields(lab):
    router = Hosts(lab).router
    router.stop()
    with tempfile.TemporaryDirectory(prefix="turnpike-test-") as place, \
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(os.path.join(place, "socket"))
        journal.setblocking(False)
        plain, router._argv = router._argv, ["bash", "-c", SERVICE, place, *router._argv]
        router.start(wait=False)
        came = []
        assert wait_for(lambda: came.extend(entries(journal)) or any("ready: 2" in e["MESSAGE"] for e in came), 30), came
        assert router.log() == ""
        (ready,) = [entry for entry in came if "ready: 2" in entry["MESSAGE"]]
        assert ready["SYSLOG_IDENTIFIER"] == "turnpike" and ready["PRIORITY"] == "5"
        assert ready["CODE_FILE"].endswith(".rs") and int(ready["CODE_LINE"]) > 0 and ready["TARGET"].startswith("router")
        # The level changes there, too; a refusal has the priority of a warning.
        wrong = router.command("apply", "/dev/null", check=False)
        assert wrong.returncode == 1
        assert wait_for(lambda: came.extend(entries(journal)) or any(e["PRIORITY"] == "4" for e in came), 10), came
        (router.directory / "quiet.lua").write_text(PORTS + 'turnpike.log { level = "error" }\n')
        router.command("apply", router.directory / "quiet.lua")
        came.extend(entries(journal))
        count = len(came)
        router.command("route", "add", "198.51.100.0/24", "blackhole")
        assert router.command("apply", "/dev/null", check=False).returncode == 1
        came.extend(entries(journal))
        assert [e["MESSAGE"] for e in came[count:] if int(e["PRIORITY"]) > 3] == []
        # A journal that does not read holds the router up no longer than a full socket does; here it is gone.
        journal.close()
        assert router.show("ports")
        router.process.terminate()
        assert router.process.wait(30) == 0
    # Standard error that is a file has lines, whatever the environment says.
    router._argv = ["env", "JOURNAL_STREAM=1:2", *plain]
    router.start()
    router.stop()
