"""What the kernel's lists of mounts and devices say about a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.system.mounts import Mount, read_storage
from tests.builders import write_files

ROOT_MOUNT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"


def escape(path: Path) -> str:
    return str(path).replace(" ", "\\040")


def read_under(path: Path, *mounts: str, sys: Path | None = None) -> Mount:
    """Read where a path is kept on a machine that has these mounts beside its root."""
    proc = write_files(path.parent / "proc", {"self/mountinfo": "\n".join([ROOT_MOUNT, *mounts, ""])})
    found = read_storage(path, proc, sys or path.parent / "nowhere")
    assert found is not None
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "my data"
    folder.mkdir()
    return folder


def write_disk(root: Path, name: str, number: str, rotational: str) -> Path:
    """Write the /sys of a disk with one partition, as the kernel links them."""
    disk = write_files(root, {f"devices/{name}/queue/rotational": rotational}) / "devices" / name
    (disk / f"{name}1").mkdir()
    (root / "dev" / "block").mkdir(parents=True)
    (root / "dev" / "block" / number).symlink_to(disk / f"{name}1")
    return root


def test_a_path_lies_on_the_deepest_mount_around_it(data: Path) -> None:
    around, elsewhere = escape(data.parent), "31 22 0:51 / /elsewhere rw - ceph x rw"
    found = read_under(data, f"30 22 0:50 / {around} rw - nfs4 server:/export rw", elsewhere)
    assert (found.filesystem, found.device, found.kind) == ("nfs4", "server:/export", "network")


def test_a_mount_whose_name_only_begins_alike_is_another_one(data: Path) -> None:
    assert read_under(data, f"30 22 0:50 / {escape(data)[:-1]} rw - nfs x rw").filesystem == "ext4"


def test_a_space_in_a_mount_point_is_read_as_the_kernel_writes_it(data: Path) -> None:
    found = read_under(data, f"30 22 0:50 / {escape(data)} rw - fuse.sshfs me@host:/a\\040b rw")
    assert (found.mount_point, found.device) == (str(data), "me@host:/a b")


def test_of_mounts_over_one_another_the_last_counts(data: Path) -> None:
    assert read_under(data, "40 22 0:60 / / rw - overlay overlay rw").filesystem == "overlay"


def test_a_link_is_followed_to_where_the_data_is_kept(data: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(data)
    assert read_under(link, f"30 22 0:50 / {escape(data)} rw - lustre mgs:/fs rw").filesystem == "lustre"


@pytest.mark.parametrize(("flag", "turns"), [("1\n", True), ("0\n", False), ("?\n", None)])
def test_a_partition_turns_when_its_disk_does(data: Path, tmp_path: Path, flag: str, turns: bool | None) -> None:
    assert read_under(data, sys=write_disk(tmp_path / "sys", "sda", "8:1", flag)).rotational is turns


def test_the_flag_of_a_virtual_disk_says_nothing(data: Path, tmp_path: Path) -> None:
    sys = write_disk(tmp_path / "sys", "vda", "8:1", "1\n")
    assert read_under(data, sys=sys).rotational is None


def test_a_volume_without_a_number_is_asked_by_the_name_of_its_device(data: Path, tmp_path: Path) -> None:
    sys = write_files(tmp_path / "sys", {"class/block/sdb/queue/rotational": "1\n"})
    assert read_under(data, "40 22 0:60 / / rw - btrfs /dev/sdb rw", sys=sys).rotational is True


@pytest.mark.parametrize(
    ("filesystem", "kind"),
    [
        ("nfs", "network"),
        ("ceph", "network"),
        ("fuse", "program"),
        ("fuse.gcsfuse", "program"),
        ("fuseblk", "local"),
        ("fuse.fuse-overlayfs", "overlay"),
        ("overlay", "overlay"),
        ("tmpfs", "memory"),
        ("xfs", "local"),
    ],
)
def test_a_file_system_is_known_by_what_answers_its_reads(data: Path, filesystem: str, kind: str) -> None:
    assert read_under(data, f"40 22 0:60 / / rw - {filesystem} x rw").kind == kind


@pytest.mark.parametrize("text", ["", "garbage\n", "1 2 3\n", "22 1 8:1 / / rw -\n"])
def test_a_list_of_mounts_that_tells_nothing_is_no_error(data: Path, tmp_path: Path, text: str) -> None:
    assert read_storage(data, write_files(tmp_path / "proc", {"self/mountinfo": text}), tmp_path) is None


def test_a_path_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing: No such file or directory"):
        read_storage(tmp_path / "missing")


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    found = read_storage(tmp_path)
    assert found is None or found.filesystem
