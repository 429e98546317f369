"""The file system under a path, its device, and whether that is a rotational disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from autotune.errors import UsageError
from autotune.system.kernel_files import SYS, read_text

Kind = Literal["local", "memory", "network", "program", "overlay"]

_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("overlay", "aufs", "fuse.fuse-overlayfs", "fuse.overlayfs"), "overlay"),
    **dict.fromkeys(("tmpfs", "ramfs"), "memory"),
    **dict.fromkeys(("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs"), "network"),
    **dict.fromkeys(("nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"), "network"),
}
_VIRTUAL: Final = ("vd", "xvd", "loop")  # disks of virtual machines, and files as disks: nobody sets their flag


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount that holds a path.

    Attributes:
        path: The path.
        filesystem: Type of the file system, as the kernel names it.
        device: The mounted device, a server's export, or a word.
        rotational: Whether it is a rotational disk; None if unknown.
    """

    path: Path
    filesystem: str
    device: str
    rotational: bool | None = None

    @property
    def kind(self) -> Kind:
        """What answers a read: a disk of this machine, its memory, a server, a program, or a container's layers."""
        is_program = self.filesystem.partition(".")[0] == "fuse"
        return _KINDS.get(self.filesystem, "program" if is_program else "local")


def find_mount(path: Path, sys: Path = SYS) -> Mount | None:
    """Find the mount that holds a path: the deepest, and the last of several at one place; None if unknown.

    Raises:
        UsageError: There is no such path.
    """
    try:
        real = path.resolve(strict=True)
        number = real.stat().st_dev
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: {reason}. Pass the folder or the file that the dataset reads.") from None
    try:
        around = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
    except OSError:
        return None
    if not around:
        return None
    mount = max(reversed(around), key=lambda mount: len(Path(mount.mountpoint).parts))
    return Mount(path, mount.fstype, mount.device, _read_rotational(number, mount.device, sys))


def _read_rotational(number: int, device: str, sys: Path) -> bool | None:
    """Read the flag of a device's disk, which is found by its number, or for btrfs by the name of the device."""
    by_number = sys / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    for link in (by_number, sys / "class" / "block" / Path(device).name):
        for folder in (link.resolve(), link.resolve().parent):  # the parent of a partition is its disk
            flag = read_text(folder / "queue" / "rotational").strip()
            if flag in ("0", "1"):
                return None if folder.name.startswith(_VIRTUAL) else flag == "1"
    return None
