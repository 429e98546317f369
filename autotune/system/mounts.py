"""The file system of a path, its device, and whether the device is a rotational disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from autotune.errors import UsageError
from autotune.system.procfs import SYS, read_text

KINDS: Final = {
    "overlay": {"overlay", "aufs", "fuse.fuse-overlayfs", "fuse.overlayfs"},
    "memory": {"tmpfs", "ramfs"},
    "network": {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"}
    | {"orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"},
}
VIRTUAL_DISKS: Final = ("vd", "xvd", "loop")  # disks of virtual machines and disk images, whose flag means nothing


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount of a path, with the kernel's names of the file system and the device."""

    path: Path
    filesystem: str
    device: str
    rotational: bool | None = None  # None if unknown

    @property
    def kind(self) -> str:
        """Kind of storage: `local` disk, `memory`, `network`, `program` (FUSE) or `overlay` (container layers)."""
        default = "program" if self.filesystem.partition(".")[0] == "fuse" else "local"
        return next((kind for kind, filesystems in KINDS.items() if self.filesystem in filesystems), default)


def find_mount(path: Path, sys: Path = SYS) -> Mount | None:
    """Find the deepest mount that contains a path, and the last of several at one path; None if unknown."""
    try:
        real = path.resolve(strict=True)
        number = real.stat().st_dev
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: {reason}. Pass the folder or the file that the dataset reads.") from None
    try:
        mounts = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
    except OSError:
        return None
    mount = max(reversed(mounts), key=lambda mount: len(Path(mount.mountpoint).parts), default=None)
    return mount and Mount(path, mount.fstype, mount.device, _read_rotational(number, mount.device, sys))


def _read_rotational(number: int, device: str, sys: Path) -> bool | None:
    """Read the flag of a device's disk, found by its number, or for btrfs by the name of the device."""
    by_number = sys / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    for link in (by_number, sys / "class" / "block" / Path(device).name):
        for folder in (link.resolve(), link.resolve().parent):  # the parent of a partition is its disk
            flag = read_text(folder / "queue" / "rotational").strip()
            if flag in ("0", "1"):
                return None if folder.name.startswith(VIRTUAL_DISKS) else flag == "1"
    return None
