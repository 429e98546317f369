from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from autotune.child.copied_memory import describe_growth, read_copied_bytes
from autotune.child.data_checks import Observation, _watch_workers
from autotune.child.workload import LoadedWorkload
from autotune.request import Workload
from tests.builders import make_workload, write_files

MIB = 2**20
SHARED = "Anonymous: 2000 kB\nPrivate_Dirty: 500 kB\n"
COPIED = "Anonymous: 2000 kB\nPrivate_Dirty: 1500 kB\n"
GROWN = "Anonymous: 3000 kB\nPrivate_Dirty: 1500 kB\n"


@pytest.mark.parametrize(("later", "copied"), [(SHARED, 0), (COPIED, 1000 * 1024), (GROWN, 0)])
def test_a_copied_page_is_distinguished_from_an_allocated_one(later: str, copied: int, tmp_path: Path) -> None:
    write_files(tmp_path, {"1/smaps_rollup": SHARED, "2/smaps_rollup": later})
    before, after = (read_copied_bytes([pid], tmp_path) for pid in (1, 2))
    assert after - before == copied


def test_a_forked_process_is_seen_to_copy_what_it_writes_to() -> None:
    kept = bytearray(b"x" * 64 * MIB)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before = read_copied_bytes([os.getpid()])
        kept[:: os.sysconf("SC_PAGE_SIZE")] = b"y" * len(kept[:: os.sysconf("SC_PAGE_SIZE")])
        os.write(writer, str(read_copied_bytes([os.getpid()]) - before).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert 60 * MIB < int(os.read(reader, 100)) < 70 * MIB
    os.close(reader)
    os.close(writer)


class Images(Dataset[torch.Tensor]):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1)


def describe(dataset: Dataset[Any], per_sample: int = 4096) -> str | None:
    workload = LoadedWorkload(parts=Workload(dataset=dataset))
    return describe_growth(workload, [(1000, 10 * MIB), (2000, 10 * MIB + 1000 * per_sample)])


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the size of the heap that can be copied."""
    sizes = {"Anonymous": 140 * MIB}
    monkeypatch.setattr("autotune.child.copied_memory.read_smaps", lambda pid: sizes)


INFOS = [{"path": f"{number:050}"} for number in range(150_000)]


@pytest.mark.usefixtures("heap")
@pytest.mark.parametrize(
    ("dataset", "cure"),
    [
        (Images(root="x", classes=["a"] * 100, infos=INFOS), "keep it in autotune.shared(dataset.infos)"),
        (Images(datasets=[Images(), Images(infos=INFOS)]), "keep it in autotune.shared(dataset.datasets[1].infos)"),
        (Images(names=dict(enumerate(INFOS))), "Most is in `dataset.names`, a dict of 150,000 objects of type dict"),
    ],
)
def test_the_note_says_how_much_is_copied_and_names_the_collection(dataset: Images, cure: str) -> None:
    words = describe(dataset) or ""
    assert "copy up to 140 MiB" in words
    assert "3.9 MiB in 1,000 samples; 8 workers: 1.1 GiB" in words
    assert cure in words


@pytest.mark.parametrize(("heap_mib", "is_noted"), [(140, False), (600, True)])
def test_copies_that_no_collection_explains_are_noted_only_if_they_are_large(
    heap_mib: int, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.child.copied_memory.read_smaps", lambda pid: {"Anonymous": heap_mib * MIB})
    words = describe(Images(pixels=np.zeros(10**6), classes=["a"]), per_sample=8192) or ""
    assert ("Keep names and labels in numpy arrays or tensors" in words) is is_noted


@pytest.mark.usefixtures("heap")
def test_a_dataset_that_holds_itself_ends_the_search_for_collections() -> None:
    dataset = Images(infos=INFOS)
    dataset.dataset = dataset  # type: ignore[attr-defined]  # whatever a user's object holds
    assert "dataset.infos" in (describe(dataset) or "")


@pytest.mark.usefixtures("heap")
def test_little_copied_memory_is_not_worth_a_note() -> None:
    assert describe(Images(infos=INFOS), per_sample=16) is None
    assert describe_growth(LoadedWorkload(parts=Workload(dataset=Images())), []) is None


class Names(Images):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(len(self.names[index]))  # type: ignore[attr-defined]  # which Images sets


def test_workers_that_read_a_list_are_seen_to_copy_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.data_checks.MIN_HEAP_BYTES", 0)
    monkeypatch.setattr("autotune.child.data_checks.MAX_SECONDS", 3.0)
    workload = LoadedWorkload(parts=Workload(dataset=Names(names=[f"{number:0500}" for number in range(1_000_000)])))
    seen = Observation(reads_worker_info=False)
    _watch_workers(workload, make_workload(), dict.fromkeys(range(64), ""), seen)
    assert seen.copied[-1][1] - seen.copied[0][1] > MIB
