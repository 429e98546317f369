from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import Dataset, IterableDataset, Sampler, TensorDataset, get_worker_info

from autotune.child.probe_workers import (
    ReplayDataset,
    SharedWatch,
    complete_profile,
    time_transfer,
)
from autotune.child.workload import LoadedWorkload
from autotune.config import ProcessSettings
from autotune.protocol.messages import ProbeCommand
from autotune.protocol.workload_profile import LinearCost
from autotune.request import Workload
from tests.builders import make_workload
from tests.echo_server import serve_echo

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def load(dataset: Dataset[Any], **parts: Any) -> LoadedWorkload:
    return LoadedWorkload(parts=Workload(dataset=dataset, **parts))


class OnlyInWorkers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        assert get_worker_info() is not None, "only workers may read this"
        return torch.zeros(1)


class NeverInWorkers(OnlyInWorkers):
    def __getitem__(self, index: int) -> torch.Tensor:
        assert get_worker_info() is None, "no worker may read this"
        return torch.zeros(1)


class OnlyStreamedInWorkers(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        assert get_worker_info() is not None, "only workers may read this"
        return iter(torch.zeros(64))


class Batches(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        raise AssertionError("it has __getitems__")

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * index for index in indices]


def complete(workload: LoadedWorkload, most: int = 64, memory: int = 2**33, **fields: Any) -> tuple[Any, list[str]]:
    profile = make_workload(kind=workload.kind, **fields)
    phases: list[str] = []
    digests = {0: "0", 1: "1"} if workload.kind == "map" else {}
    command = ProbeCommand(usable_cpus=1.0, memory_bytes=memory, max_workers=most, digests=digests)
    return complete_profile(workload, command, profile, phases.append), phases


@pytest.mark.parametrize("dataset", [OnlyInWorkers(), OnlyStreamedInWorkers()])
def test_a_process_of_role_workers_never_reads_the_dataset_itself(dataset: Dataset[Any]) -> None:
    found, _ = complete(load(dataset))
    assert found.worker_start_cost != make_workload().worker_start_cost
    assert found.transfer_cost != make_workload().transfer_cost


def test_workers_that_fail_leave_the_profile_unchanged() -> None:
    before = make_workload(kind="map")
    assert complete(load(NeverInWorkers()))[0] == before


@pytest.mark.parametrize(("seconds", "is_checked"), [(0.1, True), (1.0, False)])
def test_the_samples_of_slow_datasets_are_not_checked(seconds: float, is_checked: bool) -> None:
    load_cost = LinearCost(per_item=seconds)
    _, phases = complete(load(OnlyInWorkers()), load_cost=load_cost)
    assert ("checking the data of workers" in phases) is is_checked


@pytest.mark.parametrize(
    ("limits", "workers"), [({}, 2), ({"most": 1}, 1), ({"memory": 10}, 2), ({"memory": 10, "context": "spawn"}, 1)]
)
def test_as_many_workers_start_as_the_cpus_and_the_limits_call_for(
    limits: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def start(_: LoadedWorkload, count: int, watch: object) -> float:
        started.append(count)
        return 1.0

    monkeypatch.setattr("autotune.child.probe_workers.time_worker_startup", start)
    for name in ("measure_transfer", "check_workers"):
        monkeypatch.setattr(f"autotune.child.probe_workers.{name}", lambda _, profile, *others: profile)
    others = {name: value for name, value in limits.items() if name != "context"}
    complete(load(OnlyInWorkers(), multiprocessing_context=limits.get("context")), **others)
    assert max(started) == workers


def replay(dataset: Dataset[Any], indices: list[int] | None, count: int) -> list[int]:
    samples = iter(ReplayDataset(dataset, indices, count))
    return [int(next(samples)) for _ in range(5)]


def test_samples_are_fetched_as_a_loader_fetches_them_and_repeated() -> None:
    assert replay(Batches(), [7, 3], 2) == [70, 30, 70, 30, 70]
    assert replay(range(100), None, 2) == [0, 1, 0, 1, 0]  # type: ignore[arg-type]  # an iterable


def test_a_slow_sample_is_fetched_once_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.probe_workers.MAX_FETCH_SECONDS", 0.0)
    assert replay(Batches(), [1, 2, 3], 3) == [10] * 5


def test_the_transfer_of_a_large_batch_costs_more_than_that_of_a_small_one() -> None:
    workload = load(TensorDataset(torch.zeros(256, 256 * 1024)))
    small, large = (sum(time_transfer(workload, size)) for size in (1, 64))
    assert large > 2 * small > 0


def test_the_transfer_is_timed_with_the_default_sharing_strategy(tmp_path: Path) -> None:
    def collate(samples: list[object]) -> torch.Tensor:
        (tmp_path / get_sharing_strategy()).touch()
        return torch.zeros(len(samples))

    time_transfer(load(OnlyInWorkers(), collate_fn=collate), size=2)
    assert [path.name for path in tmp_path.iterdir()] == [ProcessSettings().sharing_strategy]


def test_a_long_start_of_workers_that_are_not_forked_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "autotune.child.probe_workers.time_worker_startup", lambda _, workers, watch: 0.5 + 1.5 * workers
    )
    found, _ = complete(load(OnlyInWorkers(), multiprocessing_context="spawn"))
    assert found.worker_start_cost.at(4) == pytest.approx(0.5 + 1.5 * 4, abs=0.1)
    assert found.notes[0] == "Each worker takes 1.5 s to start, since workers are not forked."


class Records(Dataset[int]):
    """Numbers in a file that is opened before the workers are forked, or by each of them."""

    def __init__(self, path: Path, *, is_open: bool) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0) if is_open else None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        self._file = file = self._file or self._path.open("rb", buffering=0)
        file.seek(index)
        return file.read(1)[0]


@pytest.mark.parametrize(
    ("is_open", "is_deleted"),
    [(True, False), (True, True), (False, False)],
    ids=["before the fork", "deleted", "in the worker"],
)
def test_a_file_whose_position_workers_share_is_named(is_open: bool, is_deleted: bool, tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(bytes(range(64)))
    dataset = Records(path, is_open=is_open)
    if is_deleted:
        path.unlink()
    found, phases = complete(load(dataset), notes=())
    name = f"the position of {path}{' (deleted)' * is_deleted}"
    assert found.shared_by_workers == (name if is_open else None)
    assert [name in note for note in found.notes] == [True] * is_open
    assert ("starting 2 workers" in phases) is not is_open
    if is_open:
        assert dataset._file is not None
        dataset._file.close()


class Lines(IterableDataset[int]):
    """Goes through a file that is opened before the workers are forked; its first block is in Python's buffer."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        self.file.readline()

    def __iter__(self) -> Iterator[int]:
        return map(int, self.file)


@pytest.mark.parametrize("parts", [{}, {"batched": False}])
def test_a_file_whose_first_block_was_read_before_the_workers_started_is_named(
    parts: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"".join(b"%099d\n" % number for number in range(4000)))
    found, _ = complete(load(dataset := Lines(tmp_path / "lines"), **parts), notes=())
    dataset.file.close()
    assert found.shared_by_workers == f"the position of {tmp_path}/lines"


def test_nothing_is_shared_with_workers_that_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    for method, found in (("spawn", None), ("fork", "the position of /file")):
        read = Mock(side_effect=[{("3", "/file"): position} for position in (0, 0, 1)])
        monkeypatch.setattr("autotune.child.probe_workers._read_positions", read)
        watch = SharedWatch(load(Batches(), multiprocessing_context=method))
        watch.look()
        assert watch.found == found


def test_a_shared_file_whose_name_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.write_bytes(bytes(range(64)))
    found, _ = complete(load(dataset := Records(path, is_open=True)), notes=())
    assert found.shared_by_workers == rf"the position of {tmp_path}/caf\udce9"
    assert found.model_dump_json()
    assert dataset._file is not None
    dataset._file.close()


class Remote(Dataset[int]):
    """Asks a server for numbers, by one connection or by one of each worker's own."""

    def __init__(self, address: tuple[str, int], *, is_shared: bool) -> None:
        self.address, self.connection = address, socket.create_connection(address) if is_shared else None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        self.connection = self.connection or socket.create_connection(self.address)
        self.connection.sendall(bytes([index]))
        return self.connection.recv(1)[0]


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_connection_that_workers_share_is_named(is_shared: bool) -> None:
    with serve_echo() as address:
        dataset = Remote(address, is_shared=is_shared)
        ours, theirs = socket.socketpair()  # of another family, as the tuner's own
        with ours, theirs:
            found, _ = complete(load(dataset))
        if dataset.connection is not None:
            dataset.connection.close()
    peer = f"the connection to 127.0.0.1:{address[1]}"
    assert found.shared_by_workers == (peer if is_shared else None)


class Shuffled(Sampler[int]):
    """Reads the order of samples from a file."""

    def __init__(self, path: Path) -> None:
        path.write_text("\n".join(map(str, range(64))))
        self.file = path.open()

    def __iter__(self) -> Iterator[int]:
        self.file.seek(0)
        return map(int, self.file)


class Unsized(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(64))

    def __len__(self) -> int:
        raise NotImplementedError


def test_the_costs_of_workers_are_measured_with_a_sampler_whose_length_fails() -> None:
    found, _ = complete(load(OnlyInWorkers(), sampler=Unsized()))
    assert found.transfer_cost != make_workload().transfer_cost


def test_a_file_that_the_sampler_reads_is_not_shared_by_workers(tmp_path: Path) -> None:
    sampler = Shuffled(tmp_path / "order.txt")
    found, _ = complete(load(OnlyInWorkers(), sampler=sampler))
    sampler.file.close()
    assert found.transfer_cost != make_workload().transfer_cost
    assert found.shared_by_workers is None
