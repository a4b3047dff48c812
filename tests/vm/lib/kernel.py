"""Debian's kernel for the virtual machine: downloaded, unpacked, not installed; and its first file system."""

import contextlib
import fcntl
import gzip
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from lib.router import ROOT

_META_PACKAGE = "linux-image-amd64"
# The modules that reach the machine's own root; all others are loaded from there.
_BOOT_MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay"]
_BUSYBOX = "/bin/busybox"
# The first bytes of data compressed by zstd, as Debian's newer kernels are.
_ZSTD = b"\x28\xb5\x2f\xfd"


class Kernel:
    """A kernel image, uncompressed, and its modules in `directory`, a tree with `boot` and `lib/modules`."""

    def __init__(self, directory, release):
        self.directory = directory
        self.release = release
        self.image = directory / f"boot/vmlinux-{release}"
        self.modules = directory / f"lib/modules/{release}"

    @classmethod
    def of_debian(cls):
        """The kernel of the machine's Debian release, or with `VM_KERNEL=backports` that of its backports; downloaded when
        apt knows a newer one than is kept."""
        with tempfile.NamedTemporaryFile(suffix=".list") as sources:
            options = _backports(sources.name) if os.environ.get("VM_KERNEL") == "backports" else []
            # Several machines may start at a time.
            with _locked(_kept_in()):
                package = _package(options)
                release = package.removeprefix("linux-image-")
                kernel = cls(_kept_in() / release, release)
                if not kernel.image.exists():
                    _unpack(package, kernel, options)
        return kernel

    def initramfs(self, path, init):
        """Writes the first file system: busybox, the modules for the root, and `init`."""
        tree = path.with_suffix(".tree")
        for folder in ("bin", "modules", "root", "host", "upper", "proc", "sys", "dev"):
            (tree / folder).mkdir(parents=True)
        shutil.copy(_BUSYBOX, tree / "bin")
        shutil.copy(init, tree / "init")
        (tree / "init").chmod(0o755)
        for number, module in enumerate(self._with_dependencies(_BOOT_MODULES)):
            shutil.copy(module, tree / f"modules/{number:02}-{module.name}")
        names = "\n".join(str(file.relative_to(tree)) for file in sorted(tree.rglob("*")))
        packed = _run("cpio", "--create", "--format=newc", "--quiet", cwd=tree, input=names.encode())
        path.write_bytes(gzip.compress(packed, compresslevel=1))
        shutil.rmtree(tree)

    def _with_dependencies(self, names):
        """The files of these modules, each behind those it needs."""
        files = {}
        for name in names:
            listed = _run("modprobe", "-d", self.directory, "-S", self.release, "--show-depends", name)
            files.update(dict.fromkeys(re.findall(r"^insmod (\S+)", listed.decode(), re.MULTILINE)))
        return [Path(file) for file in files]


def _kept_in():
    """Unpacked kernels stay below cargo's target folder, which git ignores."""
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "vm"


@contextlib.contextmanager
def _locked(directory):
    """One process at a time has the folder."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _backports(sources):
    """Options by which apt knows the release's backports beside all else, which this file of sources has then."""
    _run(ROOT / "scripts/backports.sh", sources)
    release = re.search(r"^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(), re.MULTILINE)[1]
    return ["-o", f"Dir::Etc::sourcelist={sources}", "-t", f"{release}-backports"]


def _package(options):
    """The package that the kernel is in."""
    for update in (False, True):
        if update:
            _run("apt-get", "update", "-qq")
        shown = _run("apt-cache", "depends", "--important", *options, _META_PACKAGE, check=False).decode()
        if found := re.search(r"Depends: (linux-image-\S+)", shown):
            return found[1]
    raise RuntimeError(f"apt knows no package {_META_PACKAGE}: the virtual machine boots Debian's kernel")


def _unpack(package, kernel, options):
    """Downloads the package and unpacks it, all or nothing."""
    print(f"== unpacking {package} in {kernel.directory} (it is not installed)", flush=True)
    partial = kernel.directory.with_name(f"{kernel.release}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _run("apt-get", "download", "-qq", *options, package, cwd=partial, check=False)
        if not list(partial.glob("*.deb")):
            # The archive has a newer one than apt's lists.
            _run("apt-get", "update", "-qq")
            _run("apt-get", "download", "-qq", package, cwd=partial)
        (archive,) = partial.glob("*.deb")
        _run("dpkg", "-x", archive, partial)
        archive.unlink()
        _run("depmod", "-b", partial, kernel.release)
        image = _decompressed((partial / f"boot/vmlinuz-{kernel.release}").read_bytes())
        (partial / kernel.image.relative_to(kernel.directory)).write_bytes(image)
        shutil.rmtree(kernel.directory, ignore_errors=True)
        partial.rename(kernel.directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _decompressed(image):
    """The ELF file in a bzImage, which QEMU starts by its PVH entry. To decompress it takes an emulated core 25
    seconds, and us one.

    The fields are those of the kernel's Documentation/arch/x86/boot.rst.
    """
    setup_sectors, offset, length = image[0x1F1], *struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    # Behind the compressed data stands the size of the file.
    packed = image[start : start + length - 4]
    if packed.startswith(_ZSTD):
        return _run("zstd", "-dcq", input=packed)
    return lzma.decompress(packed, format=lzma.FORMAT_XZ)


def _run(*argv, check=True, **kwargs):
    """The output of a command; raises with what it says if it fails."""
    done = subprocess.run([*map(str, argv)], capture_output=True, **kwargs)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, argv))}: exit {done.returncode}\n{done.stderr.decode()}")
    return done.stdout
