"""Install the wheel in the root filesystem of a Debian release and train the README's first example there.

    python tools/debian_trial.py [FOLDER] [--wheel dist/wholestep-0.1.0-py3-none-any.whl]   # ARM64, under qemu-user
    python tools/debian_trial.py --arch amd64 --suite trixie                                  # another Python

debootstrap fetches the packages, which are unpacked without their installation scripts.  Programs run in that folder by
chroot, in a user namespace of their own, where the kernel passes programs of ARM64 to qemu (Linux 6.7 or newer).
Python, pip, gcc and NumPy are those of the release.  The example runs twice, the second time from its cache, and has to
print what it prints on this machine: losses and accuracies, to the bit.  A folder that is named is kept, and used again
by the next run.
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

TOOLS = {"debootstrap": "debootstrap", "unshare": "util-linux"}
EMULATOR = {"qemu-aarch64-static": "qemu-user-static"}
PACKAGES = "python3,python3-venv,gcc,libc6-dev,ca-certificates"
MIRROR = "http://deb.debian.org/debian"
OTHER_SCRIPT = "/usr/share/debootstrap/scripts/gutsy"  # of all releases of Ubuntu
SHARED = ("/dev", "/proc", "/sys", "/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs")  # of this machine
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
# A header of ELF for ARM64 and the bits of it that count; F: the emulator is opened now, outside of the new root.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
ENTER = f"""
set -e
root=$1; shift
if [ -n "$emulator" ]; then
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  printf %s ':arm64:M::{MAGIC}:{MASK}:'"$emulator"':F' > /proc/sys/fs/binfmt_misc/register
fi
for each in {" ".join(SHARED)}; do
  if [ -d "$each" ]; then mkdir -p "$root$each"; else touch "$root$each"; fi
  mount --rbind "$each" "$root$each"
done
cd "$root/root"
exec chroot "$root" /usr/bin/env -i -C /root HOME=/root PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"
"""
PRINTED = "print(history['loss'], history['val_loss'])\n"


def need_tools(arch: str) -> None:
    """Exit with the command that installs what is missing."""
    needed = {**TOOLS, **(EMULATOR if arch == "arm64" else {})}
    missing = [package for tool, package in needed.items() if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"needs {', '.join(missing)}: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise SystemExit("debootstrap needs root: sudo python tools/debian_trial.py")


def make_root(folder: Path, arch: str, suite: str, mirror: str) -> None:
    """The packages of a release, unpacked."""
    if (folder / "usr/bin/python3").exists():
        return
    options = ["--foreign", f"--arch={arch}", "--variant=minbase", f"--include={PACKAGES}"]
    script = []
    if mirror != MIRROR:  # whose keys and name are not known here
        options, script = [*options, "--no-check-gpg", "--components=main,universe"], [OTHER_SCRIPT]
    run(["debootstrap", *options, suite, folder, mirror, *script])
    for package in sorted((folder / "var/cache/apt/archives").glob("*.deb")):
        run(["dpkg-deb", "--extract", package, folder])


def inside(folder: Path, arch: str, *command: str) -> str:
    """The output of a command in the root filesystem."""
    emulator = shutil.which("qemu-aarch64-static") if arch == "arm64" else ""
    environment = {**os.environ, "emulator": str(emulator)}
    return run([*NAMESPACE, "sh", "-c", ENTER, "sh", folder.resolve(), *command], env=environment)


def trial(folder: Path, wheel: Path, arch: str) -> None:
    """Install, train twice, and compare with this machine."""
    shutil.copy(wheel, folder / "root")
    (folder / "root/example.py").write_text(readme_example() + PRINTED, encoding="utf-8")
    shutil.rmtree(folder / "root/.cache", ignore_errors=True)
    python = "/root/venv/bin/python"
    inside(folder, arch, "/usr/bin/python3", "-m", "venv", "--clear", "/root/venv")
    inside(folder, arch, python, "-m", "pip", "install", "--no-cache-dir", f"/root/{wheel.name}")
    print(inside(folder, arch, "/root/venv/bin/wholestep", "doctor"))
    first, cached = (inside(folder, arch, python, "/root/example.py") for _ in range(2))
    here = run([sys.executable, folder / "root/example.py"])
    print(first)
    if not numbers(first) == numbers(cached) == numbers(here):
        raise SystemExit(f"with a cache the example printed other numbers, or this machine did:\n{cached}{here}")
    print("the same numbers from the cache and on this machine, to the bit")


def numbers(printed: str) -> list[str]:
    """The last two lines: accuracy and losses, in full precision."""
    return printed.splitlines()[-2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of the root filesystem; by default a temporary one")
    parser.add_argument("--wheel", type=Path, help="by default it is built")
    parser.add_argument("--arch", default="arm64", choices=["arm64", "amd64"])
    parser.add_argument("--suite", default="bookworm", help="a release: bookworm has Python 3.11, trixie 3.13")
    parser.add_argument("--mirror", default=MIRROR, help="of Ubuntu, for its releases")
    arguments = parser.parse_args()
    need_tools(arguments.arch)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name, "root")
        make_root(folder, arguments.arch, arguments.suite, arguments.mirror)
        trial(folder, arguments.wheel or build(Path(name, "dist"))[0], arguments.arch)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
