"""As much of systemd as a service with `Type=notify` and `FileDescriptorStoreMax=` sees (sd_notify(3),
sd_listen_fds(3)): it keeps the descriptors it is sent and gives them to the next process, and reads its messages."""

import array
import os
import socket
import tempfile


class Manager:
    """Stores descriptors by name, in `kept`, and all other messages, as dictionaries, in `messages`. With `watchdog`,
    in seconds, the service is asked for signs of life."""

    def __init__(self, watchdog=None):
        self._watchdog = watchdog
        self.messages = []
        self._directory = tempfile.TemporaryDirectory(prefix="turnpike-manager-")
        self._path = os.path.join(self._directory.name, "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._path)
        self._socket.setblocking(False)
        self.kept = {}

    def receive(self):
        """Executes the service's requests."""
        while True:
            try:
                text, ancillary, *_ = self._socket.recvmsg(4096, socket.CMSG_SPACE(64))
            except BlockingIOError:
                return
            words = dict(line.split("=", 1) for line in text.decode().splitlines())
            numbers = array.array("i")
            for *_, data in ancillary:
                numbers.frombytes(data)
            if words.get("FDSTOREREMOVE") == "1":
                os.close(self.kept.pop(words["FDNAME"]))
            elif words.get("FDSTORE") == "1":
                (number,) = numbers
                if words["FDNAME"] in self.kept:
                    # The same one once more.
                    os.close(number)
                else:
                    self.kept[words["FDNAME"]] = number
            else:
                self.messages.append(words)

    def wrap(self, argv):
        """The arguments and options by which a process is started with the stored descriptors."""
        self.receive()
        # Out of the range of their final numbers.
        numbers = [os.dup2(number, 200 + place) for place, number in enumerate(self.kept.values())]
        moves = "".join(f"exec {3 + place}<&{number} {number}<&-; " for place, number in enumerate(numbers))
        script = f'{moves}LISTEN_PID=$$ exec "$@"'
        environment = {
            **os.environ, "NOTIFY_SOCKET": self._path,
            "LISTEN_FDS": str(len(numbers)), "LISTEN_FDNAMES": ":".join(self.kept),
        }
        if self._watchdog:
            environment["WATCHDOG_USEC"] = str(int(self._watchdog * 1e6))
        return ["bash", "-c", script, "-", *argv], {"env": environment, "pass_fds": numbers}

    def told(self, word):
        """The number of messages with this word so far."""
        self.receive()
        return sum(word in message for message in self.messages)

    def close(self):
        """Closes all descriptors."""
        self.receive()
        for number in self.kept.values():
            os.close(number)
        self.kept.clear()
        self._socket.close()
        self._directory.cleanup()
