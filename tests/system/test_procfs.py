"""Memory, threads and tensors in /dev/shm of processes."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from autotune.system.procfs import (
    SENT_BYTES,
    is_cleaner,
    is_exiting,
    list_empty_segments,
    list_names,
    list_tree,
    list_used_segments,
    list_used_semaphores,
    measure_pss,
    measure_segments,
    memory_upper_bound,
    read_file_positions,
    read_smaps,
    read_tcp_bytes,
    remove_folder,
    remove_segments,
)
from tests.builders import write_files

SMAPS = "5630-7fff ---p 00000000 00:00 0    [rollup]\nRss:    90 kB\nPss:    80 kB\n"
PSS_BY_KIND = "Pss_Anon:    20 kB\nPss_File:    50 kB\nPss_Shmem:    10 kB\n"


def test_exact_memory_leaves_out_mapped_files_and_the_cheap_bound_counts_shared_memory_once(tmp_path: Path) -> None:
    status = "Name:\tpython\nRssAnon:\t    30 kB\nRssFile:\t   900 kB\nRssShmem:\t    7 kB\n"
    write_files(tmp_path, {f"{pid}/smaps_rollup": SMAPS + PSS_BY_KIND for pid in (7, 8)})
    write_files(tmp_path, {"7/status": status, "8/status": status, "6/status": ""})
    assert measure_pss([7, 8, 9], tmp_path) == 2 * 30 * 1024
    assert memory_upper_bound([6, 7, 8, 9], tmp_path) == (2 * 30 + 7) * 1024
    write_files(tmp_path, {"7/smaps_rollup": SMAPS})
    assert measure_pss([7], tmp_path) == 80 * 1024  # of an old kernel
    assert read_smaps(9, tmp_path)["Pss"] == 0


def test_this_process_takes_no_more_than_the_bound() -> None:
    assert 0 < measure_pss([os.getpid()]) <= memory_upper_bound([os.getpid()])


def test_a_killed_process_is_exiting_until_it_is_reaped(tmp_path: Path) -> None:
    write_files(tmp_path, {"7/stat": "7 (a (b) c) D 1 7 7 0 -1 4194564 10", "8/stat": "8 (x) D 1 8 8 0 -1 4194560 10"})
    assert [is_exiting(pid, tmp_path) for pid in (7, 8, 9)] == [True, False, False]
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_exiting(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_exiting(process.pid)


def make_segment(folder: Path, name: str, pages: int = 1) -> Path:
    path = folder / name
    path.write_bytes(b"1" * pages * mmap.PAGESIZE)
    return path


def test_only_the_given_names_are_removed(tmp_path: Path) -> None:
    for name in ("torch_12_1_0", "torch_12_1_1", "torch_123_1_0"):
        make_segment(tmp_path, name)
    remove_segments(["torch_12_1_0", "torch_7_1_0"], shm=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"torch_12_1_1", "torch_123_1_0"}


def test_a_segment_is_in_use_as_long_as_it_is_open_or_mapped(tmp_path: Path) -> None:
    path = make_segment(Path("/dev/shm"), f"torch_{os.getpid()}_1_0")
    with path.open("rb") as file:
        assert path.name in list_used_segments()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    path.unlink()
    with mapped:
        assert path.name in list_used_segments()
    assert path.name not in list_used_segments()
    assert list_used_segments(7, tmp_path) == set()


def test_a_semaphore_of_multiprocessing_is_found_by_the_process_that_has_mapped_it() -> None:
    lock = multiprocessing.get_context("spawn").Lock()  # which keeps its name
    name = f"sem.{lock._semlock.name[1:]}"  # type: ignore[attr-defined]  # private
    assert Path("/dev/shm", name).exists()
    assert name in list_used_semaphores([os.getpid()])
    assert name not in list_used_semaphores([os.getppid()])


def test_files_of_the_user_are_no_segments(tmp_path: Path) -> None:
    folder = tmp_path / "torch_datasets"
    folder.mkdir()
    with (
        make_segment(folder, "torch_1_2_3").open("rb") as file,
        tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="torch_train") as copied,
    ):
        assert not list_used_segments() & {Path(file.name).name, Path(copied.name).name}


def test_without_files_of_children_descendants_are_found_by_their_parents(tmp_path: Path) -> None:
    parents = {7: 1, 8: 7, 9: 8, 10: 1}
    write_files(tmp_path, {f"{pid}/stat": f"{pid} (a ) b) S {parent} 7 7 0" for pid, parent in parents.items()})
    assert list_tree(7, tmp_path) == [7, 8, 9]
    write_files(tmp_path, {"7/task/7/children": "10 "})
    assert list_tree(7, tmp_path) == [7, 10]


def test_a_folder_is_removed_with_read_only_folders_but_not_what_links_lead_to(tmp_path: Path) -> None:
    outside, trial = tmp_path / "outside", tmp_path / "trial"
    write_files(tmp_path, {"outside/file": "", "trial/a/b/file": ""})
    (trial / "link").symlink_to(outside)
    for folder in (outside, trial / "a" / "b", trial / "a"):
        folder.chmod(0o500)
    remove_folder(trial)
    assert not trial.exists()
    assert outside.stat().st_mode & 0o777 == 0o500


def test_a_folder_is_removed_though_the_folders_in_it_are_nested_deeply(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    inner = os.open(tmp_path / "trial", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("inner", dir_fd=inner)
        outer, inner = inner, os.open("inner", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    remove_folder(tmp_path / "trial")
    assert not (tmp_path / "trial").exists()


@pytest.mark.parametrize("package", ["multiprocessing", "joblib.externals.loky.backend"])
def test_resource_trackers_clean_up(package: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"7/cmdline": f"python\0-c\0from {package}.resource_tracker import main; main(5)\0"})
    assert is_cleaner(7, tmp_path)
    assert not is_cleaner(8, tmp_path)


def test_names_without_content_remain_of_a_full_shm(tmp_path: Path) -> None:
    make_segment(tmp_path, "torch_12_1_0")
    make_segment(tmp_path, "torch_12_1_1", pages=0)
    assert list_empty_segments({12}, tmp_path) == {"torch_12_1_1"}
    assert list_empty_segments({1}, tmp_path) == set()


def test_a_name_that_gets_content_meanwhile_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_segment(tmp_path, "torch_12_1_1", pages=0)
    monkeypatch.setattr("time.sleep", lambda seconds: make_segment(tmp_path, "torch_12_1_1"))
    assert list_empty_segments({12}, tmp_path) == set()


def test_tensors_and_files_of_other_processes_are_left_out(tmp_path: Path) -> None:
    for name in ("torch_12_1_0", "torch_123_1_0", "torch_", "psm_1", "nccl-1"):
        make_segment(tmp_path, name)
    assert list_names({12}, shm=tmp_path) == {"torch_12_1_0"}


def test_a_log_that_is_written_keeps_its_position_and_a_file_that_is_read_does_not(tmp_path: Path) -> None:
    path, found = tmp_path / "log", list[int]()
    with path.open("w+b", buffering=0) as log:
        for change in (b"", b"12", b"34", 1):
            log.seek(change) if isinstance(change, int) else log.write(change)
            found += [at for (_, one), at in read_file_positions().items() if one == str(path)]
    assert found == [-1, -1, -1, 1]


def test_each_segment_counts_once_whether_it_is_mapped_open_or_only_has_a_name(tmp_path: Path) -> None:
    before, _ = measure_segments([os.getpid()], [], shm=tmp_path)  # of other files that are open
    both, opened = make_segment(tmp_path, "both", 1), make_segment(tmp_path, "open", 2)
    make_segment(tmp_path, "name", 4)
    with both.open("rb") as file, opened.open("rb"), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        opened.unlink()
        total, unmapped = measure_segments([os.getpid()], ["name"], shm=tmp_path)
    assert (total - before, unmapped - before) == (7 * mmap.PAGESIZE, 6 * mmap.PAGESIZE)
    assert measure_segments([os.getpid()], [], shm=tmp_path / "missing") == (0, 0)


def test_looking_at_connections_leaves_them_blocking_though_new_ones_have_a_timeout() -> None:
    ours, theirs = socket.socketpair()
    socket.setdefaulttimeout(30)
    try:
        read_tcp_bytes(SENT_BYTES)
    finally:
        socket.setdefaulttimeout(None)
    with ours, theirs:
        assert os.get_blocking(ours.fileno())
