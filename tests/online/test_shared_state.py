"""No workers are added to a dataset that they would share wrongly: its batches stay those of one process."""

from __future__ import annotations

import functools
import io
import os
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from autotune.online.attach import autopilot
from autotune.online.autopilot import Autopilot
from tests.online.test_epoch import own_settings

LENGTH = 2**20


class Reading(Dataset[int]):
    """Samples that are read by a function, slowly enough that workers would help."""

    def __init__(self, read: Callable[[int], int]) -> None:
        self._read = read

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return self._read(index)


class Seeking:
    """Reads a file that is opened only once."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file

    def __call__(self, index: int) -> int:
        self._file.seek(index % 256)
        return self._file.read(1)[0] + index - index % 256


class Asking:
    """Asks through a pair of files or sockets that return what is sent."""

    def __init__(self, send: Callable[[bytes], object], receive: Callable[[int], bytes]) -> None:
        self._send, self._receive = send, receive

    def __call__(self, index: int) -> int:
        self._send(index.to_bytes(8, "big"))
        return int.from_bytes(self._receive(8), "big")


class Caching:
    """Keeps what it returns, in a list or in the cache of a method."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.by_index = OddEntries()

    def keep(self, index: int) -> int:
        self.kept.append(index)
        return index

    def store(self, index: int) -> int:
        return self.by_index.setdefault(index, index)

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033  # the idiom under test
    def remember(self, index: int) -> int:
        return index


class OddEntries(dict[int, int]):
    """A dict whose length cannot be asked for."""

    def __len__(self) -> int:
        raise NotImplementedError


class CachingSamples(Reading):
    def __init__(self) -> None:
        super().__init__(int)

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033  # the idiom under test
    def __getitem__(self, index: int) -> int:
        return super().__getitem__(index)


class Counting:
    """Counts its calls, and opens a file at the first one, as many datasets do."""

    def __init__(self, path: Path) -> None:
        self._path, self._calls = path, dict.fromkeys("ab", 0)
        self._file: int | None = None
        self.gone: Any = weakref.proxy(type("Gone", (), {})())  # it raises an error when it is looked at

    def __call__(self, index: int) -> int:
        self._file = self._file or os.open(self._path, os.O_RDONLY)
        self._calls["a"] += 1
        return index


def converge(dataset: Any, own: int = 0) -> Autopilot:
    """Train until the workers are chosen, and check the batches."""
    loader: Any = autopilot(DataLoader(dataset, 8, num_workers=own), None)
    for position, batch in enumerate(loader):
        assert batch.tolist() == list(range(8 * position, 8 * position + 8))
        if loader.autopilot_state.controller.has_converged:
            break
    return loader.autopilot_state  # type: ignore[no-any-return]


@pytest.fixture
def connections() -> Iterator[dict[str, Asking]]:
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        pipes = Asking(process.stdin.write, process.stdout.read)
        yield {"sockets": Asking(ours.sendall, theirs.recv), "pipes": pipes}


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("mode", ["rb", "r+b"])
def test_the_position_of_an_open_file(own: int, mode: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "samples").write_bytes(bytes(range(256)))
    with (tmp_path / "samples").open(mode, buffering=0) as file:
        state = converge(Reading(Seeking(file)), own)
    assert state.controller.settings == own_settings(DataLoader([], num_workers=own))  # type: ignore[arg-type]
    assert f"share the position of {tmp_path}/samples; open it in the first call" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["sockets", "pipes"])
def test_a_connection(kind: str, connections: dict[str, Asking], capsys: pytest.CaptureFixture[str]) -> None:
    state = converge(Subset(Reading(connections[kind]), range(LENGTH)))
    assert state.controller.settings.workers == 0
    assert "workers would share the dataset's connection; connect in __getitem__" in capsys.readouterr().err


@pytest.mark.parametrize(
    "dataset",
    [
        Reading(Caching().keep),
        Reading(Caching().store),
        Subset(Reading(Caching().remember), range(LENGTH)),
        CachingSamples(),
    ],
    ids=["list", "a class of dict", "a method of its object", "its own method"],
)
def test_a_cache(dataset: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert converge(dataset).controller.settings.workers == 0
    assert "each worker would have a cache of its own" in capsys.readouterr().err


def test_a_dataset_that_counts_and_opens_its_file_gets_workers(tmp_path: Path) -> None:
    (tmp_path / "samples").touch()
    assert converge(Reading(Counting(tmp_path / "samples"))).controller.settings.workers > 1


def test_no_worker_is_added_between_short_epochs(tmp_path: Path) -> None:
    (tmp_path / "samples").write_bytes(bytes(range(256)))
    with (tmp_path / "samples").open("rb", buffering=0) as file, (tmp_path / "samples").open("rb"):
        loader: Any = autopilot(DataLoader(Subset(Reading(Seeking(file)), range(256)), 8), None)
        for _ in range(20):
            assert torch.cat(list(loader)).tolist() == list(range(256))
            if loader.autopilot_state.controller.has_converged:
                break
    assert "share the position" in loader.autopilot_state.controller.failure
    assert loader.autopilot_state.controller.settings.workers == 0
