"""Install the wheel in a Debian root filesystem for ARM64 and train the README's first example there, under qemu-user.

    python tools/arm64_trial.py [FOLDER] [--wheel dist/wholestep-0.1.0-py3-none-any.whl]

debootstrap fetches the packages of Debian, which are unpacked without their installation scripts.  Programs run in that
folder by chroot, in a user namespace of their own, where the kernel passes programs of ARM64 to qemu (Linux 6.7 or
newer).  Python, pip, gcc and NumPy are those of ARM64.  The example has to print what it prints on this machine:
losses and accuracies, to the bit.  A folder that is named is kept, and used again by the next run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from dist import build, readme_example, run

TOOLS = {"debootstrap": "debootstrap", "qemu-aarch64-static": "qemu-user-static", "unshare": "util-linux"}
SUITE, PACKAGES = "bookworm", "python3,python3-venv,gcc,libc6-dev,ca-certificates"
SHARED = ("/dev", "/proc", "/sys", "/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs")  # of this machine
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
# A header of ELF for ARM64 and the bits of it that count; F: the emulator is opened now, outside of the new root.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
ENTER = f"""
set -e
root=$1; shift
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
printf %s ':arm64:M::{MAGIC}:{MASK}:'"$(command -v qemu-aarch64-static)"':F' > /proc/sys/fs/binfmt_misc/register
for each in {" ".join(SHARED)}; do
  if [ -d "$each" ]; then mkdir -p "$root$each"; else touch "$root$each"; fi
  mount --rbind "$each" "$root$each"
done
cd "$root/root"
exec chroot "$root" /usr/bin/env -i -C /root HOME=/root PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"
"""
PRINTED = "print(history['loss'], history['val_loss'])\n"


def need_tools() -> None:
    """Exit with the command that installs what is missing."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"needs {', '.join(missing)}: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise SystemExit("debootstrap needs root: sudo python tools/arm64_trial.py")


def make_root(folder: Path) -> None:
    """The packages of Debian for ARM64, unpacked."""
    if (folder / "usr/bin/python3").exists():
        return
    run(["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", f"--include={PACKAGES}", SUITE, folder])
    for package in sorted((folder / "var/cache/apt/archives").glob("*.deb")):
        run(["dpkg-deb", "--extract", package, folder])


def inside(folder: Path, *command: str) -> str:
    """The output of a command in the root filesystem."""
    return run([*NAMESPACE, "sh", "-c", ENTER, "sh", folder.resolve(), *command])


def trial(folder: Path, wheel: Path) -> None:
    """Install, train, and compare with this machine."""
    shutil.copy(wheel, folder / "root")
    (folder / "root/example.py").write_text(readme_example() + PRINTED, encoding="utf-8")
    python = "/root/venv/bin/python"
    inside(folder, "/usr/bin/python3", "-m", "venv", "--clear", "/root/venv")
    inside(folder, python, "-m", "pip", "install", "--no-cache-dir", f"/root/{wheel.name}")
    print(inside(folder, "/root/venv/bin/wholestep", "doctor"))
    there = inside(folder, python, "/root/example.py")
    here = run([sys.executable, folder / "root/example.py"])
    print(there)
    if numbers(there) != numbers(here):
        raise SystemExit(f"this machine printed other numbers:\n{here}")
    print("the same numbers as on this machine, to the bit")


def numbers(printed: str) -> list[str]:
    """The last two lines: accuracy and losses, in full precision."""
    return printed.splitlines()[-2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of the root filesystem; by default a temporary one")
    parser.add_argument("--wheel", type=Path, help="by default it is built")
    arguments = parser.parse_args()
    need_tools()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name, "root")
        make_root(folder)
        trial(folder, arguments.wheel or build(Path(name, "dist"))[0])
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
