"""A LACP peer (IEEE 802.1AX-2014 6.4) on raw wires: the other side of a bond, written from the standard."""

import struct
import threading
import time

from .packets import ethernet, mac_bytes
from .raw import RawPort

SLOW_GROUP = "01:80:c2:00:00:02"
SLOW_ETHERTYPE = 0x8809

# Flags of a port.
ACTIVITY, TIMEOUT, AGGREGATION, SYNC, COLLECTING, DISTRIBUTING, DEFAULTED, EXPIRED = (1 << bit for bit in range(8))
IN_USE = SYNC | COLLECTING | DISTRIBUTING

_PORT = struct.Struct("!H6sHHHB3x")


def port(system, key=1, number=1, state=ACTIVITY | TIMEOUT | AGGREGATION, priority=0x8000):
    """A port as a LACPDU describes it."""
    return {"priority": priority, "system": mac_bytes(system), "key": key, "number": number, "state": state}


NOBODY = port("00:00:00:00:00:00", 0, 0, 0, 0)


def _packed(of):
    return _PORT.pack(of["priority"], of["system"], of["key"], 0x8000, of["number"], of["state"])


def _parsed(data):
    priority, system, key, _, number, state = _PORT.unpack(data)
    return {"priority": priority, "system": system, "key": key, "number": number, "state": state}


def lacpdu(source, actor, partner=NOBODY):
    """The frame of a LACPDU."""
    pdu = b"\1\1" + b"\1\x14" + _packed(actor) + b"\2\x14" + _packed(partner) + b"\3\x10" + bytes(14) + bytes(52)
    assert len(pdu) == 110
    return ethernet(SLOW_GROUP, source, SLOW_ETHERTYPE, pdu)


def parse(frame):
    """Actor and partner of a LACPDU; None for other frames."""
    if frame[12:16] != b"\x88\x09\1\1":
        return None
    assert len(frame) >= 124 and frame[:6] == mac_bytes(SLOW_GROUP), frame.hex()
    assert (frame[16:18], frame[36:38], frame[56:58]) == (b"\1\x14", b"\2\x14", b"\3\x10"), frame.hex()
    return _parsed(frame[18:36]), _parsed(frame[38:56])


def marker(source, transaction):
    """A marker, and the answer to be expected but for its source."""
    information = struct.pack("!H6sI2x", 7, mac_bytes(source), transaction) + bytes(92)
    return [ethernet(SLOW_GROUP, source, SLOW_ETHERTYPE, b"\2\1" + kind + information) for kind in (b"\1\x10", b"\2\x10")]


def is_lacp(frame):
    """True for frames of the slow protocols."""
    return frame[12:14] == b"\x88\x09"


class Peer:
    """The ports of another system at these interfaces of a namespace, each of which answers LACPDUs in a thread.

    `mute` has the interfaces that send nothing at present; `heard` the last actor and partner received by each.
    `systems` and `keys` may differ by interface.
    """

    def __init__(self, namespace, interfaces, system="02:00:00:00:aa:01", systems=None, key=5):
        self.mute, self.heard, self.times = set(), {}, {name: [] for name in interfaces}
        self._stop = threading.Event()
        self._threads = []
        for number, name in enumerate(interfaces, 1):
            wire = RawPort(namespace, name)
            own = (systems or {}).get(name, system)
            run = threading.Thread(target=self._run, args=(wire, name, own, key, number), daemon=True)
            run.start()
            self._threads.append(run)

    def _run(self, wire, name, system, key, number):
        next_time, state = 0, ACTIVITY | TIMEOUT | AGGREGATION
        while not self._stop.is_set():
            frame = wire._next(0.05, all_frames=True)
            pdu = parse(frame) if frame is not None else None
            answer = False
            if pdu is not None:
                self.heard[name] = pdu
                self.times[name].append(time.monotonic())
                actor, partner = pdu
                knows = (partner["system"], partner["number"], partner["key"]) == (mac_bytes(system), number, key)
                before = state
                state = ACTIVITY | TIMEOUT | AGGREGATION | SYNC
                if actor["state"] & SYNC and knows:
                    state |= COLLECTING | DISTRIBUTING
                answer = state != before or not knows
            if (answer or time.monotonic() >= next_time) and name not in self.mute:
                actor = self.heard.get(name, (NOBODY, NOBODY))[0]
                own = port(system, key, number, state)
                try:
                    wire.send(lacpdu(f"02:00:00:00:bb:{number:02x}", own, actor))
                except OSError:
                    pass  # The interface is down.
                next_time = time.monotonic() + 1
        wire.close()

    def close(self):
        """Ends the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
