from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

import autotune
from autotune.system.processes import read_smaps

ENTRIES = st.lists(st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.integers()))


@given(ENTRIES)
def test_it_reads_as_the_list_that_it_was_made_of(items: list[Any]) -> None:
    kept = autotune.shared(items)
    assert list(kept) == items
    assert len(kept) == len(items)
    assert kept[:] == items
    assert kept[::-2] == items[::-2]
    assert [kept[at - len(items)] for at in range(len(items))] == items


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_beyond_its_end_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError):
        autotune.shared("abc")[index]


class Infos(Dataset[torch.Tensor]):
    """Reads an entry of a long list for each sample, and gives how much of its memory the process has to itself."""

    def __init__(self, infos: Any) -> None:
        self.infos = infos

    def __len__(self) -> int:
        return len(self.infos)

    def __getitem__(self, index: int) -> torch.Tensor:
        assert self.infos[index]["number"] == index
        return torch.tensor(read_smaps("self")["Private_Dirty"] if index % 1000 == 999 else 0)


def make_infos() -> list[dict[str, Any]]:
    return [{"number": number, "name": f"{number:0100}"} for number in range(100_000)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 counts them
@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="only what is forked shares memory")
def test_a_forked_worker_that_reads_all_of_it_copies_next_to_nothing() -> None:
    def measure_growth(infos: Any) -> int:
        sizes = [int(size) for batch in DataLoader(Infos(infos), 100, num_workers=1) for size in batch if size]
        return sizes[-1] - sizes[0]

    infos = make_infos()
    assert measure_growth(autotune.shared(infos)) < 0.2 * measure_growth(infos)


def test_a_spawned_worker_reads_it_too() -> None:
    loader = DataLoader(Infos(autotune.shared(make_infos()[:10])), 5, num_workers=1, multiprocessing_context="spawn")
    assert [len(batch) for batch in loader] == [5, 5]
