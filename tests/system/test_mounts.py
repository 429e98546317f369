"""What the kernel's lists of mounts and devices say about a path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.system.mounts import Mount, find_mount
from tests.builders import write_files

ROOT_MOUNT = "/dev/sda1 / ext4 rw,relatime 0 0"


def escape(path: Path) -> str:
    return str(path).replace(" ", "\\040")


def find_among(path: Path, text: str, sys: Path) -> Mount | None:
    """Find where a path is kept on a machine with this list of mounts."""
    proc = write_files(path.parent / "proc", {"self/mounts": text})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("psutil.PROCFS_PATH", str(proc))
        return find_mount(path, sys)


def find_under(path: Path, *mounts: str, sys: Path | None = None) -> Mount:
    """Find where a path is kept on a machine that has these mounts beside its root."""
    found = find_among(path, "\n".join([ROOT_MOUNT, *mounts, ""]), sys or path.parent / "nowhere")
    assert found is not None
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "my data"
    folder.mkdir()
    return folder


def write_disk(root: Path, name: str, rotational: str) -> Path:
    """Write the /sys of a disk whose one partition holds the folder, as the kernel links them."""
    device = root.parent.stat().st_dev
    disk = write_files(root, {f"devices/{name}/queue/rotational": rotational}) / "devices" / name
    (disk / f"{name}1").mkdir()
    (root / "dev" / "block").mkdir(parents=True)
    (root / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}").symlink_to(disk / f"{name}1")
    return root


def test_a_path_lies_on_the_deepest_mount_around_it(data: Path) -> None:
    around, elsewhere = escape(data.parent), "x /elsewhere ceph rw 0 0"
    found = find_under(data, f"server:/export {around} nfs4 rw 0 0", elsewhere)
    assert (found.filesystem, found.device, found.kind) == ("nfs4", "server:/export", "network")


def test_a_mount_whose_name_only_begins_alike_is_another_one(data: Path) -> None:
    assert find_under(data, f"x {escape(data)[:-1]} nfs rw 0 0").filesystem == "ext4"


def test_a_space_in_a_mount_point_is_read_as_the_kernel_writes_it(data: Path) -> None:
    found = find_under(data, f"me@host:/a\\040b {escape(data)} fuse.sshfs rw 0 0")
    assert (found.filesystem, found.device) == ("fuse.sshfs", "me@host:/a b")


def test_of_mounts_over_one_another_the_last_counts(data: Path) -> None:
    assert find_under(data, "overlay / overlay rw 0 0").filesystem == "overlay"


def test_a_link_is_followed_to_where_the_data_is_kept(data: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(data)
    assert find_under(link, f"mgs:/fs {escape(data)} lustre rw 0 0").filesystem == "lustre"


@pytest.mark.parametrize(("flag", "turns"), [("1\n", True), ("0\n", False), ("?\n", None)])
def test_a_partition_turns_when_its_disk_does(data: Path, tmp_path: Path, flag: str, turns: bool | None) -> None:
    assert find_under(data, sys=write_disk(tmp_path / "sys", "sda", flag)).rotational is turns


def test_the_flag_of_a_virtual_disk_says_nothing(data: Path, tmp_path: Path) -> None:
    sys = write_disk(tmp_path / "sys", "vda", "1\n")
    assert find_under(data, sys=sys).rotational is None


def test_a_volume_without_a_number_is_asked_by_the_name_of_its_device(data: Path, tmp_path: Path) -> None:
    sys = write_files(tmp_path / "sys", {"class/block/sdb/queue/rotational": "1\n"})
    assert find_under(data, "/dev/sdb / btrfs rw 0 0", sys=sys).rotational is True


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
    assert find_under(data, f"x / {filesystem} rw 0 0").kind == kind


@pytest.mark.parametrize("text", ["", "garbage\n", "1 2 3\n", "\n\n", "# / ext4\n"])
def test_a_list_of_mounts_that_tells_nothing_is_no_error(data: Path, tmp_path: Path, text: str) -> None:
    assert find_among(data, text, tmp_path) is None


def test_a_machine_without_a_list_of_mounts_tells_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path / "nowhere"))
    assert find_mount(data) is None


def test_a_path_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing: No such file or directory"):
        find_mount(tmp_path / "missing")


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    found = find_mount(tmp_path)
    assert found is None or found.filesystem
