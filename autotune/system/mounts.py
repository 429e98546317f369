"""What lies under a path: the file system, its device, and whether that is a disk which turns.

Where reads wait, for a network or for the head of a disk, workers wait as well, and many more of them than there are
CPUs pay. The kernel tells which it is: /proc/self/mountinfo names the mount, /sys the device.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

from autotune.config import FrozenModel
from autotune.errors import UsageError
from autotune.system.machine import PROC, read_text

SYS: Final = Path("/sys")
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
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mount(FrozenModel):
    """Where a path is kept.

    Attributes:
        path: The path.
        filesystem: Type of its file system, as the kernel names it.
        device: What is mounted there: a device, a server's export, or a word.
        mount_point: Where.
        rotational: Whether the disk turns; None where the kernel does not tell.
    """

    path: Path
    filesystem: str
    device: str
    mount_point: str
    rotational: bool | None = None

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


class _MountEntry(FrozenModel):
    number: str
    point: str
    filesystem: str
    device: str


def read_storage(path: Path, proc: Path = PROC, sys: Path = SYS) -> Mount | None:
    """Read where a path is kept.

    Args:
        path: A file or a folder.
        proc: Where procfs is mounted.
        sys: Where sysfs is mounted.

    Returns:
        Its storage; None where the system does not tell.

    Raises:
        UsageError: There is no such path.
    """
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: {reason}. Give the folder or the file that the dataset reads.") from None
    mount = _find_mount(real, proc)
    if mount is None:
        return None
    return Mount(
        path=path,
        filesystem=mount.filesystem,
        device=mount.device,
        mount_point=mount.point,
        rotational=_read_rotational(mount, sys),
    )


def _find_mount(path: Path, proc: Path) -> _MountEntry | None:
    """Find the mount that a path lies on: the deepest, and of those over one another the last."""
    mounts = (_parse_mount(line) for line in read_text(proc / "self" / "mountinfo").splitlines())
    around = [mount for mount in mounts if mount is not None and path.is_relative_to(mount.point)]
    return max(enumerate(around), key=lambda pair: (len(Path(pair[1].point).parts), pair[0]), default=(0, None))[1]


def _parse_mount(line: str) -> _MountEntry | None:
    """Read a line such as `36 35 8:1 / /data rw,noatime shared:1 - ext4 /dev/sda1 rw`."""
    left, _, right = line.partition(" - ")
    place, source = left.split(" "), right.split(" ")
    if len(place) < 5 or len(source) < 2:
        return None
    return _MountEntry(number=place[2], point=_unescape(place[4]), filesystem=source[0], device=_unescape(source[1]))


def _unescape(text: str) -> str:
    r"""Read the kernel's octal escapes, as in `\040` for a space."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _read_rotational(mount: _MountEntry, sys: Path) -> bool | None:
    """Read whether a device turns; a partition is asked by its disk, a volume of btrfs by the name of its device."""
    for place in (sys / "dev" / "block" / mount.number, sys / "class" / "block" / Path(mount.device).name):
        device = place.resolve()
        for folder in (device, device.parent):
            flag = read_text(folder / "queue" / "rotational").strip()
            if flag in ("0", "1"):
                return None if folder.name.startswith(_VIRTUAL) else flag == "1"
    return None
