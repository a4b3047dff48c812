#!/usr/bin/env python3
"""Boots a tree with Debian and the package in a virtual machine, systemd as process 1, and runs a script in it.

    scripts/boot-deb.py ROOT SCRIPT      SCRIPT is a path in ROOT

The tree is read only, below an overlay in memory. The script's output is on standard output, its exit status this
program's. The kernel and QEMU are those of `make test-vm`.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE / "tests"))

from vm.lib import qemu  # noqa: E402
from vm.lib.kernel import Kernel  # noqa: E402

SECONDS = 900
END = "== the script ended with "

# /init of the first file system.
INIT = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do $B insmod "$module" || echo "cannot load $module"; done
$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host
$B mount -t tmpfs -o mode=755 tmpfs /upper
$B mkdir /upper/files /upper/work
$B mount -t overlay -o lowerdir=/host$LAB_ROOT,upperdir=/upper/files,workdir=/upper/work overlay /root
$B mkdir -p /root/lib/modules/$LAB_RELEASE /root/etc/systemd/system/multi-user.target.wants
$B mount --bind /host$LAB_MODULES /root/lib/modules/$LAB_RELEASE
$B cat >/root/etc/systemd/system/script.service <<UNIT
[Unit]
After=network.target systemd-sysusers.service
[Service]
Type=oneshot
StandardOutput=file:/dev/ttyS1
StandardError=inherit
ExecStart=-/bin/bash -c 'bash $LAB_SCRIPT; echo "%s\\$?"'
ExecStopPost=systemctl --no-block --force poweroff
UNIT
$B ln -s ../script.service /root/etc/systemd/system/multi-user.target.wants/
for mount in proc sys dev; do $B mount --move /$mount /root/$mount; done
exec $B switch_root /root /lib/systemd/systemd
""" % END


def boot(root, script, accelerator, directory):
    """The script's output; the machine's console, if it has none."""
    kernel = Kernel.of_debian()
    (directory / "init").write_text(INIT)
    kernel.initramfs(directory / "initramfs", directory / "init")
    settings = f"LAB_ROOT={root} LAB_SCRIPT={script} LAB_RELEASE={kernel.release} LAB_MODULES={kernel.modules}"
    arguments = [
        *qemu.ACCELERATORS[accelerator],
        "-machine", "q35", "-smp", "2", "-m", "4G", "-nodefaults", "-display", "none", "-no-reboot",
        "-chardev", f"file,id=console,path={directory / 'console'}", "-serial", "chardev:console",
        # The console's own has a login, which takes it from others.
        "-chardev", f"file,id=script,path={directory / 'script'}", "-serial", "chardev:script",
        "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", "virtio-9p-pci,fsdev=root,mount_tag=host",
        "-kernel", str(kernel.image), "-initrd", str(directory / "initramfs"),
        "-append", f"console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable {settings}",
    ]  # fmt: skip
    with open(directory / "qemu", "wb") as output:
        process = qemu.start(arguments, [], output)
    deadline = time.monotonic() + SECONDS
    script, shown = directory / "script", 0
    while process.poll() is None and time.monotonic() < deadline and END not in read(script):
        time.sleep(0.5)
        shown = show(script, shown)
    process.kill()
    process.wait()
    show(script, shown)
    return read(script) or read(directory / "console") or read(directory / "qemu")


def show(file, start):
    """Prints the text from there on; returns its length."""
    text = read(file)
    print(text[start:].replace("\r", ""), end="", flush=True)
    return len(text)


def read(file):
    return file.read_text(errors="replace") if file.exists() else ""


def main():
    root, script = Path(sys.argv[1]).resolve(), sys.argv[2]
    subprocess.run([TREE / "scripts/install-vm-deps.sh"], check=True)
    # The last is software's, which boots everywhere.
    accelerator = qemu.accelerators()[-1]
    with tempfile.TemporaryDirectory(prefix="turnpike-boot-") as directory:
        text = boot(root, script, accelerator, Path(directory))
    status = text.rpartition(END)[2].split()
    sys.exit(int(status[0]) if END in text and status else f"no end of the script:\n{text}")


if __name__ == "__main__":
    main()
