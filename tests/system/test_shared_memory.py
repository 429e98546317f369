from __future__ import annotations

import mmap
from pathlib import Path

from autotune.system.shared_memory import list_mapped_segments, remove_shm_segments


def test_names_of_the_dead_are_removed_but_for_those_in_use_and_for_those_of_others(tmp_path: Path) -> None:
    for name in ("torch_12_1_0", "torch_12_1_1", "torch_123_1_0", "sem.mp-12"):
        (tmp_path / name).touch()
    remove_shm_segments([12, 77], spared={"torch_12_1_1"}, shm=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"torch_12_1_1", "torch_123_1_0", "sem.mp-12"}


def test_a_segment_is_in_use_for_as_long_as_it_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "torch_12_1_0"
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert path.name in list_mapped_segments()
    assert path.name not in list_mapped_segments()


def test_where_mappings_cannot_be_read_none_is_known(tmp_path: Path) -> None:
    assert list_mapped_segments(tmp_path) == set()
