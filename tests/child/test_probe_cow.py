from __future__ import annotations

import gc
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from autotune.child.probe_cow import (
    HeldObjects,
    cow_bytes_per_sample,
    describe_cow_growth,
    estimate_bytes,
    find_largest,
    predict_cow_growth,
    read_cow_bytes,
)
from autotune.child.workload import LoadedWorkload
from autotune.request import Workload
from tests.builders import write_files

MIB = 2**20
SHARED = "Rss: 4000 kB\nAnonymous: 2000 kB\nPss_Anon: 1000 kB\n"
COPIED = "Rss: 4000 kB\nAnonymous: 2000 kB\nPss_Anon: 1500 kB\n"
GROWN = "Rss: 5000 kB\nAnonymous: 3000 kB\nPss_Anon: 2000 kB\n"


@pytest.mark.parametrize(("later", "copied"), [(SHARED, 0), (COPIED, 1000 * 1024), (GROWN, 0)])
def test_a_copied_page_is_told_from_one_that_was_allocated(later: str, copied: int, tmp_path: Path) -> None:
    write_files(tmp_path, {"1/smaps_rollup": SHARED, "2/smaps_rollup": later})
    before, after = (read_cow_bytes(pid, tmp_path) for pid in (1, 2))
    assert after - before == copied


def test_a_worker_that_has_ended_shares_nothing(tmp_path: Path) -> None:
    assert read_cow_bytes(1, tmp_path) == 0


def test_a_forked_process_is_seen_to_copy_what_it_writes_to() -> None:
    kept = bytearray(b"x" * 64 * MIB)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before = read_cow_bytes("self")
        kept[:: os.sysconf("SC_PAGE_SIZE")] = b"y" * len(kept[:: os.sysconf("SC_PAGE_SIZE")])
        os.write(writer, str(read_cow_bytes("self") - before).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert 60 * MIB < int(os.read(reader, 100)) < 70 * MIB
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("looks", "rate"),
    [([], 0), ([(10, 5)], 0), ([(10, 0), (30, 100)], 5), ([(10, 100), (30, 0)], 0), ([(10, 0), (10, 9)], 0)],
)
def test_the_rate_is_taken_from_the_first_look_to_the_last(looks: list[tuple[int, int]], rate: float) -> None:
    assert cow_bytes_per_sample(looks) == rate


def test_a_small_dataset_is_not_watched_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.probe_cow.MIN_HEAP_BYTES", 2**50)
    assert predict_cow_growth(LoadedWorkload(parts=Workload(dataset=TensorDataset(torch.zeros(8, 1))))) is None


class Raises(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        raise ValueError("no label")


def test_a_worker_that_is_watched_in_vain_ends_at_once_and_not_when_garbage_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autotune.child.probe_cow.MIN_HEAP_BYTES", 0)
    gc.collect()
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        assert predict_cow_growth(LoadedWorkload(parts=Workload(dataset=Raises()))) is None
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()
        gc.collect()


def test_the_warning_gives_the_amount_and_the_way_out() -> None:
    words = describe_cow_growth(bytes_per_sample=4096, worker_bytes=140 * MIB)
    assert "copy up to 140 MiB" in words
    assert "3.9 MiB in 1,000 samples" in words
    assert "8 workers: 1.1 GiB" in words
    assert "numpy arrays or tensors" in words


@pytest.mark.parametrize(
    ("kind", "cure"),
    [("list", "keep it in autotune.shared(dataset.infos)"), ("dict", "keep it in a numpy array or tensor")],
)
def test_the_warning_names_what_is_copied_where_that_is_known(kind: str, cure: str) -> None:
    held = HeldObjects("dataset.infos", kind, 1_200_000, "dict", 2 * 2**30)
    words = describe_cow_growth(bytes_per_sample=4096, worker_bytes=140 * MIB, held=held)
    assert f"Most lies in `dataset.infos`, a {kind} of 1,200,000 objects of type dict: {cure}" in words


class Images:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_the_largest_collection_of_objects_is_named() -> None:
    infos = [{"path": f"{number:050}", "label": number} for number in range(10_000)]
    found = find_largest(Images(root="x", classes=["a"] * 100, infos=infos, pixels=np.zeros(10**7)), 2**20)
    assert found is not None
    assert found.describe() == "`dataset.infos`, a list of 10,000 objects of type dict"


def test_what_lies_in_a_wrapped_dataset_is_found() -> None:
    inner = Images(names=[f"{number:050}" for number in range(10_000)])
    subset, joined = Images(dataset=inner), Images(datasets=[Images(), inner])
    places = [found.place for one in (subset, joined) if (found := find_largest(one, 1000)) is not None]
    assert places == ["dataset.dataset.names", "dataset.datasets[1].names"]


@pytest.mark.parametrize("dataset", [Images(infos=[]), Images(pixels=np.zeros(10**6)), object(), None, 3])
def test_where_nothing_is_held_in_objects_nothing_is_named(dataset: Any) -> None:
    assert find_largest(dataset, 1000) is None


def test_the_size_of_many_is_estimated_by_some() -> None:
    names = [f"{number:0100}" for number in range(10_000)]
    whole = sum(map(estimate_bytes, names))
    assert estimate_bytes(names) == pytest.approx(whole + 8 * len(names), rel=0.05)


def test_a_dataset_that_holds_itself_is_looked_at_a_few_times() -> None:
    dataset = Images(infos=["x" * 1000])
    dataset.dataset = dataset  # type: ignore[attr-defined]  # whatever a user's object holds
    assert find_largest(dataset, 1000) is not None
