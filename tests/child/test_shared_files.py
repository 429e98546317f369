"""Files that a dataset holds open before its workers start."""

from __future__ import annotations

import io
import mmap
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from autotune.child.probe import profile_workload
from autotune.child.shared_files import warn_of_shared_files
from autotune.child.workload_loading import LoadedWorkload
from autotune.trial.protocol import ProbeCommand
from autotune.trial.workload_profile import WorkloadProfile
from autotune.workload import Workload

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are not forked")


class Holds(Dataset[torch.Tensor]):
    def __init__(self, held: Any) -> None:
        self._held = held

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1)


class Streams(IterableDataset[torch.Tensor]):
    def __init__(self, held: Any) -> None:
        self._held = held

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)])


class OpensLate(Holds):
    """Opens its file when it reads the first sample, as it should."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if isinstance(self._held, Path):
            self._held = self._held.open("rb")
        return super().__getitem__(index)


H5File = type("File", (), {"__module__": "h5py._hl.files", "filename": "a.h5", "__bool__": lambda self: self.is_open})


def make_h5_file(*, is_open: bool) -> Any:
    """Make what looks like a file of h5py, which is true while it is open."""
    file: Any = H5File()
    file.is_open = is_open
    return file


def foresee(dataset: Dataset[Any], method: str | None = "fork") -> str | None:
    return warn_of_shared_files(LoadedWorkload(parts=Workload(dataset=dataset, multiprocessing_context=method)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "samples.bin"
    path.write_bytes(bytes(4096))
    return path


def test_an_open_file_is_named_with_the_way_out(path: Path) -> None:
    with path.open("rb") as file:
        note = foresee(Holds(file))
    assert note is not None
    assert f"({path})" in note
    assert "the first call of __getitem__" in note


def test_an_open_file_of_h5py_is_named_and_a_closed_one_is_not() -> None:
    assert "(h5py File a.h5)" in (foresee(Holds(make_h5_file(is_open=True))) or "")
    assert foresee(Holds(make_h5_file(is_open=False))) is None


def test_an_open_file_is_found_in_archives_lists_and_the_datasets_of_a_dataset(path: Path) -> None:
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        archive.write(path)
    with zipfile.ZipFile(path.with_suffix(".zip")) as archive, path.open("rb") as file:
        assert foresee(Holds(archive))
        assert foresee(Holds([0, {"train": file}]))
        assert foresee(Subset(ConcatDataset([Holds(None), Holds(file)]), [0]))


def test_a_stream_is_told_to_open_its_file_in_its_iterator(path: Path) -> None:
    with path.open("rb") as file:
        assert "in __iter__." in (foresee(Streams(file)) or "")


def test_what_shares_no_position_is_no_open_file(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert foresee(Holds(mapped)) is None
    assert foresee(Holds(file)) is None  # closed by now
    with path.with_suffix(".log").open("w") as log:
        assert foresee(Holds([io.BytesIO(), path, log, sys.stdin, Holds])) is None


def test_a_dataset_that_holds_itself_is_gone_through_once() -> None:
    dataset = Holds(None)
    dataset._held = [dataset, {"again": dataset}]
    assert foresee(dataset) is None


def test_workers_that_are_spawned_inherit_no_file(path: Path) -> None:
    with path.open("rb") as file:
        assert foresee(Holds(file), method="spawn") is None


@pytest.mark.parametrize("is_open", [True, False])
def test_the_probe_notes_a_file_that_was_open_before_it_read_a_sample_and_no_other(is_open: bool, path: Path) -> None:
    dataset = OpensLate(path.open("rb") if is_open else path)
    workload = LoadedWorkload(parts=Workload(dataset=dataset, multiprocessing_context="fork"))
    order = ProbeCommand(batch_size=2, largest=2, usable_cpus=1.0, with_workers=False)
    profile = profile_workload(workload, lambda batch: None, torch.device("cpu"), order, lambda phase: None)
    assert isinstance(profile, WorkloadProfile)
    dataset._held.close()
    assert any("holds an open file" in note for note in profile.notes) == is_open
