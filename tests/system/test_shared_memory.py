"""Tensors in /dev/shm: whose they are, their size, and their removal."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.system.shared_memory import (
    list_empty_segments,
    list_names,
    list_used_segments,
    measure_segments,
    remove_segments,
)

if TYPE_CHECKING:
    import pytest


def make_segment(folder: Path, name: str, pages: int = 1) -> Path:
    path = folder / name
    path.write_bytes(b"1" * pages * mmap.PAGESIZE)
    return path


def test_only_the_given_names_are_removed(tmp_path: Path) -> None:
    for name in ("torch_12_1_0", "torch_12_1_1", "torch_123_1_0"):
        make_segment(tmp_path, name)
    remove_segments(["torch_12_1_0", "torch_12_1_1", "torch_7_1_0"], spared={"torch_12_1_1"}, shm=tmp_path)
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


def test_names_without_content_remain_of_a_full_shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_segment(tmp_path, "torch_12_1_0")
    make_segment(tmp_path, "torch_12_1_1", pages=0)
    assert list_empty_segments({12}, tmp_path) == set()
    monkeypatch.setattr("autotune.system.shared_memory.MIN_EMPTY_SECONDS", -1.0)
    assert list_empty_segments({12}, tmp_path) == {"torch_12_1_1"}
    assert list_empty_segments({1}, tmp_path) == set()


def test_tensors_of_other_processes_and_known_names_are_left_out(tmp_path: Path) -> None:
    for name in ("torch_12_1_0", "torch_123_1_0", "torch_", "psm_1", "psm_0"):
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
