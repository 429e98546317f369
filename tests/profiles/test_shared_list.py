from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import autotune

ENTRIES = st.lists(st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.integers()))


@given(ENTRIES)
def test_it_reads_as_the_list_that_it_was_made_of(items: list[Any]) -> None:
    kept = autotune.shared(items)
    assert list(kept) == items
    assert len(kept) == len(items)
    assert kept[:] == items
    assert kept[::-2] == items[::-2]
    assert [kept[at - len(items)] for at in range(len(items))] == items
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            kept[index]


GROWTH = """
import gc, os, sys
import autotune
from autotune.system.procfs import read_smaps

infos = [{"number": number, "name": f"{number:0100}"} for number in range(100_000)]
if sys.argv[1] == "shared":
    infos = autotune.shared(infos)
gc.freeze()  # a collection would copy as well
if os.fork() == 0:
    before = read_smaps("self")["Private_Dirty"]
    assert all(info["number"] == number for number, info in enumerate(infos))
    print(read_smaps("self")["Private_Dirty"] - before, flush=True)
    os._exit(0)
os.wait()
"""


def measure_growth(kind: str) -> int:
    """Measure what a forked process copies when it reads all of a long list, in bytes."""
    command = [sys.executable, "-c", GROWTH, kind]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_a_forked_process_that_reads_all_of_it_copies_next_to_nothing() -> None:
    assert measure_growth("shared") < 0.2 * measure_growth("list")


def test_a_spawned_worker_reads_it_too() -> None:
    numbers: Any = autotune.shared(range(10))
    loader: DataLoader[int] = DataLoader(numbers, 5, num_workers=1, multiprocessing_context="spawn")
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
