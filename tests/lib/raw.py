"""An interface as a wire: frames in, frames out, byte for byte, with no protocol stack between."""

import errno
import select
import socket
import struct
import time

_ETH_P_ALL = 3
_SO_RCVBUFFORCE = 33
_PACKET_OUTGOING = 4
# Linux packet(7): the VLAN tag that the kernel took out of a frame comes beside it.
_SOL_PACKET, _PACKET_AUXDATA = 263, 8
_AUXDATA = struct.Struct("=IIIHHHH")
_STATUS_VLAN_VALID, _STATUS_VLAN_TPID_VALID = 1 << 4, 1 << 6


class RawPort:
    """A packet socket on one interface of a namespace.

    `send` puts frames on the wire as they are; `receive` returns the frames that arrived since
    the last call, in order. Frames that this end itself sent are not returned, nor are those for
    which `ignore(frame)` is true.
    """

    def __init__(self, namespace, interface, ignore=None):
        self.interface = interface
        self._ignore = ignore or (lambda frame: False)
        with namespace.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            self._socket.bind((interface, _ETH_P_ALL))
        self._socket.setblocking(False)

    def send(self, *frames):
        """Sends each frame (bytes, or a scapy packet)."""
        for frame in frames:
            data = bytes(frame)
            deadline = time.monotonic() + 10
            while True:
                try:
                    self._socket.send(data)
                    break
                except (BlockingIOError, OSError) as error:
                    # A veth peer without room answers like this, and one for which the frame is too long.
                    passes = isinstance(error, BlockingIOError) or error.errno == errno.ENOBUFS
                    if not passes or time.monotonic() > deadline:
                        raise
                    time.sleep(0.0005)

    def receive(self, quiet=0.15, longest=float("inf")):
        """Everything that arrives until the wire was silent for `quiet` seconds, or for `longest` seconds: a flood has no
        silence."""
        frames = []
        deadline = time.monotonic() + longest
        while time.monotonic() < deadline and (frame := self._next(quiet)) is not None:
            frames.append(frame)
        return frames

    def expect(self, count, match=None, timeout=3.0):
        """Waits for `count` frames that `match` accepts and returns them (fewer at the timeout); later frames are left
        for the next call. With `match`, it alone decides."""
        frames = []
        deadline = time.monotonic() + timeout
        while len(frames) < count and (left := deadline - time.monotonic()) > 0:
            frame = self._next(left, all_frames=match is not None)
            if frame is not None and (match is None or match(frame)):
                frames.append(frame)
        return frames

    def drain(self):
        """Discards frames that have arrived so far."""
        while self._next(0) is not None:
            pass

    def close(self):
        """Closes the socket."""
        self._socket.close()

    def _next(self, timeout, all_frames=False):
        """The next frame that arrived from the wire; None at the timeout."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                data, beside, _, address = self._socket.recvmsg(65600, 64)
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._socket], [], [], left)[0]:
                    return None
                continue
            except OSError as error:
                # The socket reports once that its interface is down, and receives again when it is up.
                if error.errno != errno.ENETDOWN:
                    raise
                continue
            frame = _with_tag(data, beside)
            if address[2] != _PACKET_OUTGOING and (all_frames or not self._ignore(frame)):
                return frame


def _with_tag(frame, beside):
    """The frame as it was on the wire: with the outer VLAN tag, which the kernel removes."""
    for level, kind, data in beside:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
            status, _, _, _, _, control, protocol = _AUXDATA.unpack_from(data)
            if status & _STATUS_VLAN_VALID:
                protocol = protocol if status & _STATUS_VLAN_TPID_VALID else 0x8100
                return frame[:12] + struct.pack("!HH", protocol, control) + frame[12:]
    return frame
