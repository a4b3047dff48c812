"""BPF programs that let all packets pass, or drop them, at the places of an interface where somebody else's may be."""

import contextlib
import ctypes
import os
import socket
import struct

_libc = ctypes.CDLL(None, use_errno=True)
# Of x86-64; other machines are not supported by the tests that use this.
_SYS_BPF = 321
_PROG_LOAD, _LINK_CREATE = 5, 28
_NAME = b"somebody"
XDP_DROP = 1

# Program type, attachment type, and the verdict by which the next one or the kernel continues.
_KINDS = {
    "xdp": (6, 37, 2),
    "tcx ingress": (3, 46, -1),
    "tcx egress": (3, 47, -1),
}


def _bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = _libc.syscall(_SYS_BPF, command, buffer, len(attributes))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"bpf {command}: {os.strerror(error)}")
    return result


def _load(kind, verdict):
    """A program of two instructions: `r0 = verdict; exit`."""
    code = struct.pack("=BBhi", 0xB7, 0, 0, verdict) + struct.pack("=BBhi", 0x95, 0, 0, 0)
    code, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack("=IIQQIIQII16s", kind, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0, 0, _NAME)
    return _bpf(_PROG_LOAD, attributes)


@contextlib.contextmanager
def attached(namespace, interface, place, verdict=None):
    """Attaches a program at `xdp`, `tcx ingress` or `tcx egress` of an interface. Raises OSError where the kernel lacks it."""
    kind, attachment, passes = _KINDS[place]
    program = _load(kind, passes if verdict is None else verdict)
    try:
        with namespace.entered():
            index = socket.if_nametoindex(interface)
            link = _bpf(_LINK_CREATE, struct.pack("=IIII48x", program, index, attachment, 0))
        try:
            yield
        finally:
            os.close(link)
    finally:
        os.close(program)
