"""Memory and threads of processes."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.system.processes import (
    PAGE_BYTES,
    measure_pss,
    memory_upper_bound,
    read_resident,
    read_smaps,
    read_thread_seconds,
)
from tests.builders import write_files

SMAPS = "5630-7fff ---p 00000000 00:00 0    [rollup]\nRss:    40 kB\nPss:    30 kB\nPss_Shmem:    10 kB\n"


def test_the_exact_memory_of_processes_is_their_share_of_each_page(tmp_path: Path) -> None:
    write_files(tmp_path, {"7/smaps_rollup": SMAPS, "8/smaps_rollup": SMAPS})
    assert measure_pss([7, 8, 9], tmp_path) == 2 * 30 * 1024


def test_the_cheap_bound_leaves_out_files_and_shared_memory(tmp_path: Path) -> None:
    write_files(tmp_path, {"7/statm": "900 50 20 1 0 100 0\n", "8/statm": ""})
    assert memory_upper_bound([7, 8, 9], tmp_path) == 30 * PAGE_BYTES


def test_a_process_that_is_gone_takes_nothing(tmp_path: Path) -> None:
    assert read_resident(7, tmp_path) == (0, 0)
    assert read_smaps(7, tmp_path)["Pss"] == 0


def test_this_process_takes_no_more_than_the_bound() -> None:
    assert 0 < measure_pss([os.getpid()]) <= memory_upper_bound([os.getpid()]) + read_resident("self")[1]


def test_the_cpu_time_of_each_thread_is_told_where_the_system_counts_it(tmp_path: Path) -> None:
    write_files(tmp_path, {"7/task/7/schedstat": "2000000 0 9\n", "7/task/8/schedstat": "500000 0 9\n"})
    write_files(tmp_path, {"8/task/8/comm": "x"})
    assert read_thread_seconds(7, tmp_path) == {7: 2e-3, 8: 5e-4}
    assert read_thread_seconds(8, tmp_path) == read_thread_seconds(9, tmp_path) == {}
