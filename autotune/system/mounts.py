"""What lies under a path: the file system, its device, and whether that is a disk which turns.

Where reads wait, for a network or for the head of a disk, workers wait as well, and many more of them than there are
CPUs pay.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from autotune.errors import UsageError
from autotune.system.kernel_files import SYS, read_text

Kind = Literal["local", "memory", "network", "program", "overlay"]

_NETWORK: Final = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"),
        *("orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"),
    )
)
_OVERLAYS: Final = frozenset(("overlay", "aufs", "fuse.fuse-overlayfs", "fuse.overlayfs"))
_MEMORY: Final = frozenset(("tmpfs", "ramfs"))
_VIRTUAL: Final = ("vd", "xvd", "loop")  # disks of virtual machines, and files as disks: nobody sets their flag


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a path is kept."""

    path: Path
    filesystem: str  # its type, as the kernel names it
    device: str  # what is mounted there: a device, a server's export, or a word
    mount_point: str
    rotational: bool | None = None  # None where the kernel does not tell

    @property
    def kind(self) -> Kind:
        """What answers a read: a disk of this machine, its memory, a server, a program, or a container's layers."""
        if self.filesystem in _OVERLAYS:
            return "overlay"
        if self.filesystem in _NETWORK:
            return "network"
        if self.filesystem.partition(".")[0] == "fuse":
            return "program"
        return "memory" if self.filesystem in _MEMORY else "local"


def find_mount(path: Path, sys: Path = SYS) -> Mount | None:
    """Find the mount that a path lies on: the deepest, and of those over one another the last.

    Raises UsageError where there is no such path; gives None where the system does not tell.
    """
    try:
        real = path.resolve(strict=True)
        number = real.stat().st_dev
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: {reason}. Give the folder or the file that the dataset reads.") from None
    try:
        around = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
    except OSError:
        return None
    if not around:
        return None
    mount = max(reversed(around), key=lambda mount: len(Path(mount.mountpoint).parts))
    return Mount(path, mount.fstype, mount.device, mount.mountpoint, _read_rotational(number, mount.device, sys))


def _read_rotational(number: int, device: str, sys: Path) -> bool | None:
    """Read whether a device turns; a partition is asked by its disk, a volume of btrfs by the name of its device."""
    by_number = sys / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    for place in (by_number, sys / "class" / "block" / Path(device).name):
        block = place.resolve()
        for folder in (block, block.parent):
            flag = read_text(folder / "queue" / "rotational").strip()
            if flag in ("0", "1"):
                return None if folder.name.startswith(_VIRTUAL) else flag == "1"
    return None
