"""A `turnpike capture` and what it has written."""

import signal
import subprocess

from scapy.utils import PcapNgReader

from .netns import wait_for
from .router import binary


class Capturing:
    """A `turnpike capture` that has begun."""

    def __init__(self, router, *words, file="capture.pcapng", output=None):
        self.router, self.file = router, router.directory / file
        argv = [binary(), "capture", *map(str, words), "-w", "-" if output else self.file, "--socket", router.socket]
        before = router.log().count('{"capture":')
        self.process = subprocess.Popen(argv, stdout=output or subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        begun = lambda: router.log().count('{"capture":') > before or self.process.poll() is not None
        assert wait_for(begun, 20), "no capture begins"

    def end(self, signum=signal.SIGINT):
        """Ends it; returns what it says."""
        if self.process.poll() is None and signum:
            self.process.send_signal(signum)
        _, said = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, said
        return said

    def packets(self):
        """The packets of the file: interface, direction, comment, frame."""
        with PcapNgReader(str(self.file)) as file:
            return [(packet.sniffed_on, packet.direction, comment_of(packet), bytes(packet)) for packet in file]


def comment_of(packet):
    comments = getattr(packet, "comments", None) or [packet.comment]
    return comments[0].decode() if isinstance(comments[0], bytes) else comments[0]
