"""`turnpike accelerate` where somebody else's XDP programs are: those that libxdp's dispatcher calls."""

import re
import subprocess

from lib.router import binary

from .lib.hosts import Inside
from .test_accelerate import FORWARDING

# A program for a dispatcher, which runs it by its priority.
PROGRAM = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <xdp/xdp_helpers.h>
struct { __uint(priority, 10); __uint(XDP_PASS, 1); } XDP_RUN_CONFIG(guard_of_lab);
SEC("xdp") int guard_of_lab(struct xdp_md *context) { return XDP_PASS; }
char licence[] SEC("license") = "GPL";
"""

# Attaches it to an interface, in the driver.
ATTACH = """
import ctypes, socket, sys
library = ctypes.CDLL("libxdp.so.1")
library.xdp_program__open_file.restype = ctypes.c_void_p
program = ctypes.c_void_p(library.xdp_program__open_file(b"/run/guard.o", b"xdp", None))
sys.exit(library.xdp_program__attach(program, socket.if_nametoindex(sys.argv[1]), 1, 0) != 0)
"""


def test_a_dispatcher_of_libxdp_is_named_with_its_programs_and_left_alone(machine, tmp_path):
    source, program = tmp_path / "guard.c", tmp_path / "guard.o"
    source.write_text(PROGRAM)
    subprocess.run(["clang", "-g", "-target", "bpf", "-O2", "-I/usr/include/x86_64-linux-gnu", "-c", source, "-o", program], check=True)
    machine.write("/run/guard.o", program.read_bytes())
    machine.run("mount", "-t", "bpf", "bpf", "/sys/fs/bpf", check=False)
    attach = lambda: machine.run("python3", "-c", ATTACH, "veth2", check=False)  # noqa: E731
    before = {name: machine.read(name).strip() for name in FORWARDING}
    hosts = [Inside(machine, side, "af_xdp") for side in (1, 2)]
    try:
        done = attach()
        shown = machine.run("ip", "-d", "link", "show", "veth2").stdout
        assert done.returncode == 0 and "xdp_dispatcher" in shown, (done, shown)
        done = machine.run(binary(), "accelerate", "veth1", "veth2", "--socket", "/run/accelerate.sock", check=False)
        said = re.sub(r"\x1b\[[0-9;]*m|\s+", " ", done.stdout + done.stderr)
        assert done.returncode == 1 and "veth2 has an XDP program already: number " in said, said
        assert "the dispatcher of libxdp (xdp-tools), native, which calls guard_of_lab" in said, said
        assert "xdp-loader unload veth2 --all" in said, said
        assert machine.run("ip", "-d", "link", "show", "veth2").stdout == shown
        assert "xdp" not in machine.run("ip", "link", "show", "veth1").stdout
        # Once it is gone Turnpike starts, and no other program takes its place then.
        machine.run("ip", "link", "set", "veth2", "xdp", "off")
        for name in FORWARDING:
            machine.write_setting(name, 1)
        router = machine.router('require "turnpike".accelerate { "veth1", "veth2" }\n')
        assert attach().returncode == 1
        assert {of["name"] for of in router.show("acceleration")["interfaces"]} == {"veth1", "veth2"}
        router.stop()
    finally:
        for name, value in before.items():
            machine.write_setting(name, value)
        for host in hosts:
            host.close()
