#!/usr/bin/env python3
"""Sends frames out of a veth interface as a NIC's driver has received them: without the socket buffers of the kernel's stack.

A packet that a program sends into a veth interface is a socket buffer, which the other end's XDP program sees after a copy:
no NIC does that. These frames are the kernel's for XDP programs (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18, as
`xdp-trafficgen` uses them): the other end's program gets them as they are, and a stack without a program makes a
socket buffer of each, as a driver does. The interface's other end needs GRO or a program, without which veth takes none.

Frames are UDP over IPv4 to 2^20 destinations by turns, as fast as they can be made until the process is told to end.
"""

import argparse
import ctypes
import mmap
import socket
import struct
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("wire.bpf.c")
DESTINATIONS = 1 << 20
HEADERS = 14 + 20 + 8
LIVE_FRAMES = 1 << 1
# Frames of one call, and those that are made before they are sent.
CALL, BATCH = 1 << 30, 64


class Options(ctypes.Structure):
    """`struct bpf_test_run_opts`."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("data_in", ctypes.c_char_p), ("data_out", ctypes.c_void_p), ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32), ("ctx_in", ctypes.c_void_p), ("ctx_out", ctypes.c_void_p), ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32), ("retval", ctypes.c_uint32), ("repeat", ctypes.c_int), ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32), ("cpu", ctypes.c_uint32), ("batch_size", ctypes.c_uint32),
    ]


def settings(device, given):
    """`struct settings` for frames of this size."""
    mac = lambda text: bytes.fromhex(text.replace(":", ""))  # noqa: E731
    own = mac(Path(f"/sys/class/net/{device}/address").read_text().strip())
    length = given.size - 4 - 14
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 64, socket.IPPROTO_UDP, 0, socket.inet_aton(given.sender), bytes(4))
    # Without a checksum of UDP, which depends on the destination.
    udp = struct.pack("!HHHH", 1024, 9, length - 20, 0)
    # Sums are taken in the order of the machine: RFC 1071, 2 (B).
    total = sum(struct.unpack("=10H", ip))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return mac(given.to_mac) + own + b"\x08\x00" + ip + udp + struct.pack("=HI", total, socket.if_nametoindex(device))


def library():
    """libbpf."""
    bpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
    for name in ("bpf_object__open_file", "bpf_object__find_program_by_name"):
        getattr(bpf, name).restype = ctypes.c_void_p
    return bpf


def loaded(bpf):
    """The program in the kernel; an error names what failed."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "wire.o"
        subprocess.run(["clang", "-target", "bpf", "-O2", "-g", "-c", SOURCE, "-o", out], check=True)
        programs = ctypes.c_void_p(bpf.bpf_object__open_file(bytes(out), None))
    if not programs or bpf.bpf_object__load(programs):
        raise OSError(ctypes.get_errno(), f"{SOURCE.name}: the kernel does not load it (Linux 5.18 or later, as root)")
    return programs


def send(given):
    """Sends until the process is ended."""
    bpf = library()
    programs = loaded(bpf)
    array = lambda name: bpf.bpf_object__find_map_fd_by_name(programs, name)  # noqa: E731
    if bpf.bpf_map_update_elem(array(b"settings"), bytes(4), settings(given.device, given), ctypes.c_uint64(0)):
        raise OSError(ctypes.get_errno(), f"{SOURCE.name}: settings")
    with mmap.mmap(array(b"destinations"), 4 * DESTINATIONS) as destinations:
        destinations[:] = given.destinations.read_bytes()
    program = bpf.bpf_program__fd(ctypes.c_void_p(bpf.bpf_object__find_program_by_name(programs, b"make_frame")))
    frame = bytes(given.size - 4)
    options = Options(size=ctypes.sizeof(Options), data_in=frame, data_size_in=len(frame), repeat=CALL, flags=LIVE_FRAMES, batch_size=BATCH)
    while True:
        if bpf.bpf_prog_test_run_opts(program, ctypes.byref(options)):
            raise OSError(ctypes.get_errno(), f"{given.device}: frames are not sent")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device")
    parser.add_argument("--to-mac", required=True)
    parser.add_argument("--sender", required=True, help="source address")
    parser.add_argument("--destinations", type=Path, required=True, metavar="FILE", help=f"{DESTINATIONS} addresses, as they are in packets")
    parser.add_argument("--size", type=int, default=64, help="bytes of frames with their checksum (64)")
    given = parser.parse_args()
    if not Path("/sys/class/net", given.device).exists():
        parser.error(f"{given.device}: no such interface")
    if given.destinations.stat().st_size != 4 * DESTINATIONS:
        parser.error(f"--destinations {given.destinations}: not {DESTINATIONS} addresses of four bytes")
    if given.size < HEADERS + 4:
        parser.error(f"--size {given.size}: at least {HEADERS + 4}, which the headers take")
    send(given)


if __name__ == "__main__":
    main()
