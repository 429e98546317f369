"""Memory, threads and tensors in /dev/shm of processes."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from autotune.system.procfs import (
    is_exiting,
    list_empty_segments,
    list_names,
    list_used_segments,
    measure_pss,
    measure_segments,
    memory_upper_bound,
    read_smaps,
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
    remove_segments(["torch_12_1_0", "torch_12_1_1", "torch_7_1_0"], kept={"torch_12_1_1"}, shm=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"torch_12_1_1", "torch_123_1_0"}


def test_a_segment_is_in_use_as_long_as_it_is_open_or_mapped(tmp_path: Path) -> None:
    path = make_segment(tmp_path, "torch_12_1_0")
    with path.open("rb") as file:
        assert path.name in list_used_segments()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with mapped:
        assert path.name in list_used_segments()
    assert path.name not in list_used_segments()
    assert list_used_segments(7, tmp_path) == set()


def test_names_without_content_remain_of_a_full_shm(tmp_path: Path) -> None:
    make_segment(tmp_path, "torch_12_1_0")
    make_segment(tmp_path, "torch_12_1_1", pages=0)
    assert list_empty_segments({12}, tmp_path) == set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.system.procfs.MIN_EMPTY_SECONDS", -1.0)
        assert list_empty_segments({12}, tmp_path) == {"torch_12_1_1"}
        assert list_empty_segments({1}, tmp_path) == set()


def test_tensors_and_files_of_other_processes_and_known_names_are_left_out(tmp_path: Path) -> None:
    for name in ("torch_12_1_0", "torch_123_1_0", "torch_", "psm_1", "psm_0", "nccl-1"):
        make_segment(tmp_path, name)
    assert list_names({12}, known={"psm_0"}, shm=tmp_path) == {"torch_12_1_0", "psm_1"}


def test_each_segment_counts_once_whether_it_is_mapped_open_or_only_has_a_name(tmp_path: Path) -> None:
    before, _ = measure_segments([os.getpid()], [], shm=tmp_path)  # of other files that are open
    both, opened = make_segment(tmp_path, "both", 1), make_segment(tmp_path, "open", 2)
    make_segment(tmp_path, "name", 4)
    with both.open("rb") as file, opened.open("rb"), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        opened.unlink()
        total, unmapped = measure_segments([os.getpid()], ["name"], shm=tmp_path)
    assert (total - before, unmapped - before) == (7 * mmap.PAGESIZE, 6 * mmap.PAGESIZE)
    assert measure_segments([os.getpid()], [], shm=tmp_path / "missing") == (0, 0)
