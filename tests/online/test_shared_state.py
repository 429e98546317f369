"""No workers are added to a dataset that they would share wrongly: its batches stay those of one process."""

from __future__ import annotations

import dis
import functools
import io
import logging
import math
import multiprocessing
import operator
import os
import random
import socket
import sqlite3
import subprocess
import tempfile
import time
import typing
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from autotune.online.attach import autopilot
from autotune.online.autopilot import Autopilot
from autotune.online.controller import Controller
from autotune.online.dataset_objects import is_connection, list_objects
from autotune.online.group import WorkerSettings
from autotune.online.result import read_facts, save_result
from autotune.online.shared_state import SharedState
from autotune.online.windows import Window
from autotune.profiles.schema import TunedProfile
from autotune.profiles.store import read_profiles
from tests.echo_server import serve_echo
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

    def close(self) -> None:
        self._file.close()


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


class Fast(Reading):
    """Samples that the training process loads faster than workers."""

    def __getitem__(self, index: int) -> int:
        return self._read(index)


def converge(dataset: Any, own: int = 0, profile: str | None = None) -> Autopilot:
    """Train until the workers are chosen, and check the batches."""
    loader: Any = autopilot(DataLoader(dataset, 8, num_workers=own), profile)
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


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("kind", ["sockets", "pipes"])
def test_a_connection(kind: str, own: int, connections: dict[str, Asking], capsys: pytest.CaptureFixture[str]) -> None:
    state = converge(Subset(Reading(connections[kind]), range(LENGTH)), own)
    assert state.controller.settings.workers == own
    assert "workers would share the dataset's connection; connect in __getitem__" in capsys.readouterr().err


KEPT: dict[int, int] = {}


def keep_for_all(index: int) -> int:
    return KEPT.setdefault(index, index)


@functools.lru_cache(maxsize=None)  # noqa: UP033  # the idiom under test
def remember_for_all(index: int) -> int:
    return index


class Preallocated:
    """Keeps samples in a list that is as long as the dataset, or in a dict of the class."""

    by_index: ClassVar[dict[int, int]] = {}

    def __init__(self, *, is_list: bool) -> None:
        self._is_list = is_list
        self._samples: list[Any] = [None] * LENGTH

    def __call__(self, index: int) -> int:
        if self._is_list:
            self._samples[index] = np.arange(index, index + 2)  # two of them cannot be compared by ==
            return index
        return self.by_index.setdefault(index, index)


class NamesGlobal(Reading):
    def __init__(self, *, is_dict: bool) -> None:
        super().__init__(int)
        self._is_dict = is_dict

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return keep_for_all(index) if self._is_dict and KEPT is not None else remember_for_all(index)


@pytest.mark.parametrize(
    "dataset",
    [
        Reading(Preallocated(is_list=True)),
        Reading(Preallocated(is_list=False)),
        NamesGlobal(is_dict=True),
        NamesGlobal(is_dict=False),
        Reading(Caching().keep),
        Reading(Caching().store),
        Subset(Reading(Caching().remember), range(LENGTH)),
        CachingSamples(),
    ],
    ids=[
        "list of None",
        "dict of the class",
        "global dict",
        "global function",
        "list",
        "a class of dict",
        "a method of its object",
        "its own method",
    ],
)
def test_a_cache(dataset: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert converge(dataset).controller.settings.workers == 0
    assert "each worker would have a cache of its own" in capsys.readouterr().err


def test_a_tcp_connection_that_is_not_in_the_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    with serve_echo() as address, socket.create_connection(address) as connection:
        number = connection.fileno()  # as in a client in C

        def ask(index: int) -> int:
            os.write(number, index.to_bytes(8, "big"))
            return int.from_bytes(os.read(number, 8), "big")

        state = converge(Reading(ask))
    assert state.controller.settings.workers == 0
    assert f"share the connection to 127.0.0.1:{address[1]}" in capsys.readouterr().err


class Collating:
    """Collates into one tensor, or into a new one for each batch."""

    def __init__(self, is_new: bool) -> None:
        self._is_new, self._batch = is_new, torch.empty(8, dtype=torch.int64)

    def __call__(self, samples: list[int]) -> torch.Tensor:
        batch = self._batch.clone() if self._is_new else self._batch
        return torch.stack([torch.tensor(one) for one in samples], out=batch)


def test_a_tensor_that_every_batch_has_is_not_overwritten() -> None:
    shared, constant = SharedState(), torch.tensor([1.0, math.nan])
    assert [shared._has_overwritten([constant, torch.zeros(0), torch.rand(100)]) for _ in range(3)] == [False] * 3
    assert shared._has_overwritten(constant.fill_(2.0))
    places = torch.arange(9).reshape(3, 3)
    assert [shared._has_overwritten(one) for one in (places[:2], places[:3], places.T)] == [False] * 3


@pytest.mark.parametrize("is_new", [False, True])
def test_a_tensor_that_is_returned_again_with_other_values(is_new: bool, capsys: pytest.CaptureFixture[str]) -> None:
    loader: Any = autopilot(DataLoader(Reading(int), 8, collate_fn=Collating(is_new)), None)
    for position, batch in enumerate(loader):
        assert batch.tolist() == list(range(8 * position, 8 * position + 8))
        if loader.autopilot_state.controller.has_converged:
            break
    assert (loader.autopilot_state.controller.settings.workers > 0) is is_new
    assert ("overwrite tensors of earlier batches; return new ones" in capsys.readouterr().err) is not is_new


SERVER: Any = None
CLIENT: Any = None


def ask_server(index: int) -> int:
    CLIENT.sendall(index.to_bytes(8, "big"))
    return int.from_bytes(SERVER.recv(8), "big")


def test_a_connection_in_a_global(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setitem(globals(), "SERVER", ours)
        monkeypatch.setitem(globals(), "CLIENT", theirs)
        assert converge(Reading(ask_server)).controller.settings.workers == 0
    assert "share the dataset's connection" in capsys.readouterr().err


@pytest.mark.parametrize("dataset", [Fast(int), range(LENGTH)])
def test_only_samples_in_memory_are_loaded_here_if_the_user_has_workers(dataset: Any) -> None:
    controller = converge(dataset, own=2).controller
    assert (WorkerSettings(0, 2) in controller.windows) is (type(dataset) is range)
    assert (controller.untried_rate > 0) is (type(dataset) is Fast)


def test_a_temporary_file_in_memory_is_not_written_to_a_disk() -> None:
    with tempfile.SpooledTemporaryFile() as file:
        assert not is_connection(file)
        assert not file._rolled  # type: ignore[attr-defined]  # not in the stubs


class Client:
    """Has a descriptor, as clients of databases in C do."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


def test_a_connection_of_a_client_in_c(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        dataset: Any = Reading(int)
        dataset.client = Client(ours.fileno())
        state = converge(dataset)
    assert state.controller.settings.workers == 0
    assert "share the dataset's connection" in capsys.readouterr().err


def test_a_pipe_of_multiprocessing(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        state = converge(Reading(Asking(theirs.send_bytes, lambda _: ours.recv_bytes())))
    assert state.controller.settings.workers == 0
    assert "share the dataset's connection" in capsys.readouterr().err


def test_a_database_of_sqlite(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(":memory:")) as database, closing(sqlite3.connect(":memory:")) as closed:
        closed.close()
        dataset: Any = Reading(lambda index: int(database.execute("SELECT ?", (index,)).fetchone()[0]))
        dataset.databases = [closed, database]
        state = converge(dataset)
    assert state.controller.settings.workers == 0
    assert "share the dataset's connection" in capsys.readouterr().err


class Holding(Reading):
    """Samples of a dataset that holds an object, from a function of it."""

    def __init__(self, held: Any, read: Callable[[int], int]) -> None:
        super().__init__(read)
        self.held = held


def test_threads_of_the_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert converge(Holding(pool, lambda index: pool.submit(int, index).result())).controller.settings.workers == 0
    assert "workers would not have the dataset's threads" in capsys.readouterr().err


NOISE = random.Random(0)


def add_noise(index: int, generator: Any = None) -> int:
    return index + max(0 * int((generator or NOISE).random()) for _ in range(1))


class Noisy(Reading):
    """Samples with random numbers of a global generator, which a function draws."""

    def __init__(self) -> None:
        super().__init__(int)

    def __getitem__(self, index: int) -> int:
        return super().__getitem__(add_noise(index))


class NoisyBelow(Noisy):
    """Samples of a class that inherits how they are loaded."""


class Seeded(Reading):
    """Samples with random numbers of a generator that the first one makes."""

    def __init__(self) -> None:
        super().__init__(int)
        self.generator: Any = None

    def __getitem__(self, index: int) -> int:
        self.generator = self.generator or random.Random(1)
        return super().__getitem__(add_noise(index, self.generator))


class Calling(Noisy):
    """Samples with random numbers of a generator that only a closure has."""

    def __init__(self) -> None:
        super().__init__()
        generator = random.Random(2)
        self.draw: Callable[[int], int] = lambda index: add_noise(index, generator)

    def __getitem__(self, index: int) -> int:
        return Reading.__getitem__(self, self.draw(index))


TORCH_GENERATOR = torch.Generator()


@pytest.mark.parametrize(
    "dataset",
    [
        *(
            Holding(one, partial(add_noise, generator=one))
            for one in (random.Random(0), np.random.default_rng(0), np.random.RandomState(0))
        ),
        Holding(TORCH_GENERATOR, lambda index: index + 0 * int(torch.rand(1, generator=TORCH_GENERATOR))),
        Reading(add_noise),
        Noisy(),
        NoisyBelow(),
        Seeded(),
        Calling(),
    ],
)
def test_a_random_generator_of_the_dataset(dataset: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert converge(dataset).controller.settings.workers == 0
    assert "each worker would repeat the random numbers of the dataset's generator" in capsys.readouterr().err


def test_a_file_that_the_first_sample_opens_for_reading_and_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "samples").write_bytes(bytes(range(256)))
    files = list[Seeking]()

    def read(index: int) -> int:
        if not files:
            files.append(Seeking((tmp_path / "samples").open("r+b", buffering=0)))
        return files[0](index)

    state = converge(Reading(read))
    files[0].close()
    assert state.controller.settings.workers == 0
    assert f"share the position of {tmp_path}/samples" in capsys.readouterr().err


class OpensItsMap(Reading):
    """Maps a file at the first sample, prepares a small table then, and logs to a pipe that it may share."""

    def __init__(self, path: Path) -> None:
        super().__init__(int)
        self._path, self._map, self._table = path, None, dict[int, int]()
        self._log = logging.getLogger("samples")
        self.named: dict[int, int] = {}

    def __getitem__(self, index: int) -> int:
        if self._map is None:
            self._map = np.load(self._path, mmap_mode="r")
            self._table.update((one, one) for one in range(100))
        return super().__getitem__(index) + self.named.get(0, 0)


named: list[int] = []  # a list of the script with the name of an attribute


def test_a_dataset_that_maps_its_file_and_prepares_a_table_gets_workers(tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", np.arange(1000))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        handler = logging.StreamHandler(ours.makefile("w"))
        dataset = OpensItsMap(tmp_path / "samples.npy")
        dataset._log.addHandler(handler)
        loader: Any = autopilot(DataLoader(dataset, 8), None)
        for _ in loader:
            named.append(0)
            if loader.autopilot_state.controller.has_converged:
                break
        dataset._log.removeHandler(handler)
    assert loader.autopilot_state.controller.settings.workers > 1


@pytest.mark.slow  # the fast tests have no pandas
def test_rows_of_a_pandas_frame_get_workers() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"label": range(1000), "name": "x"})
    dataset = Holding(frame, lambda index: index + 0 * int(frame.iloc[index % 1000]["label"]))
    assert converge(dataset).controller.settings.workers > 1


class CountingCalls(Reading):
    def __init__(self) -> None:
        super().__init__(int)
        self.calls = 0

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return super().__getitem__(index)


class Choosing(torch.utils.data.Sampler[int]):
    """Indices in the order of a generator of Python."""

    def __init__(self) -> None:
        self._generator = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        for index in range(LENGTH):
            yield index + 0 * int(self._generator.random())


def test_the_names_of_locks_are_no_random_numbers_of_the_dataset() -> None:
    multiprocessing.Lock()  # from then on there is a generator of their names
    state = SharedState()
    loader: Any = DataLoader([1.0] * 64, 4)  # type: ignore[arg-type]
    state.note(loader)
    for _ in loader:
        state.begin_load(loader)
        multiprocessing.RLock()  # as the first bar of tqdm makes one
        state.end_load(loader, None)
    assert state.explain(loader, 16) == ""


def test_a_generator_of_the_sampler_is_no_reason() -> None:
    loader: Any = autopilot(DataLoader(Reading(int), 8, sampler=Choosing()), None, quiet=True)
    for _ in loader:
        if loader.autopilot_state.controller.settings.workers > 1 or loader.autopilot_state.controller.failure:
            break
    assert not loader.autopilot_state.controller.failure


class Unhashable(type):  # noqa: PLW1641  # what the test is about
    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("compared")


class OfUnhashable(metaclass=Unhashable):
    pass


class Odd:
    """A dataset that is hard to look at."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        many = defaultdict[int, list[int]](list, {one: [one] for one in range(5000)})
        self.fields = {"n": 40, "odd": OfUnhashable(), "many": many}

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


def load_here(dataset: Any, between: Callable[[], object] = list, collate: Any = default_collate) -> str:
    """Load batches in this process, and return why no workers may be forked."""
    shared, loader = SharedState(), DataLoader(dataset, 8, collate_fn=collate)
    shared.note(loader)
    for _ in range(4):
        shared.begin_load(loader)
        shared.end_load(loader, collate([dataset[0]]))
        between()
    return shared.explain(loader, 4)


class Attributed(Reading):
    """Samples with an attribute, such as a collate_fn may add."""

    def __getitem__(self, index: int) -> Any:
        sample: Any = torch.ones(1)
        sample.length = index
        return sample


def test_attributes_of_tensors_would_not_arrive_from_a_worker() -> None:
    reason = "workers would lose the attributes of tensors; return these in the batch"
    assert load_here(Attributed(int), collate=operator.itemgetter(0)) == reason


def test_a_conjugated_tensor_would_arrive_as_another_one() -> None:
    collate = lambda samples: torch.complex(torch.ones(1), torch.ones(1)).conj()  # noqa: E731
    assert load_here(Reading(int), collate=collate).startswith("workers would lose the conjugation of tensors; return ")


class Counts:
    """Collates samples, and counts the batches."""

    batches = 0

    def __call__(self, samples: list[Any]) -> Any:
        self.batches += 1
        return default_collate(samples)


def test_a_collate_fn_that_counts() -> None:
    assert load_here(Reading(int), collate=Counts()).startswith("workers would change copies of `collate_fn.batches`")


class ReadsWhole(Reading):
    """Reads its whole file for each sample, so that the position is the same after each."""

    def __init__(self, file: Any) -> None:
        super().__init__(int)
        self._file = file

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        self._file.seek(0)
        return int(self._file.read()[index % 256])


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("mode", ["rb", "r+b"])
def test_a_file_whose_position_is_the_same_after_each_batch(
    own: int, mode: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "samples").write_bytes(bytes(range(256)))
    with (tmp_path / "samples").open(mode, buffering=0) as file:
        loader: Any = autopilot(DataLoader(ReadsWhole(file), 8, num_workers=own), None)
        for _ in loader:
            if loader.autopilot_state.controller.has_converged:
                break
    assert loader.autopilot_state.controller.settings.workers == own
    assert f"share the position of {tmp_path}/samples; open it in the first call" in capsys.readouterr().err


def test_a_file_that_loading_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "seen").open("w") as seen:
        monkeypatch.setattr(f"{__name__}.SEEN", seen, raising=False)
        assert f"share the position of {tmp_path}/seen" in load_here(Reading(write_down))


def write_down(index: int) -> int:
    SEEN.write(f"{index}\n")  # type: ignore[name-defined]  # noqa: F821  # of the test
    return index


def test_a_dataset_that_no_longer_exists_takes_no_memory() -> None:
    shared, caching = SharedState(), Caching()
    loader: Any = DataLoader(caching, 8)  # type: ignore[arg-type]
    shared.note(loader)
    caching.kept.append(held := torch.ones(1))  # type: ignore[arg-type]
    seen = weakref.ref(held)
    del held, caching, loader
    assert seen() is None


def test_a_dataset_that_is_hard_to_look_at_is_loaded() -> None:
    assert load_here(Odd()) == ""
    assert 1000 < sum(1 for _ in list_objects(Odd())) < 1100


class Unset(Reading):
    """Samples of a dataset with an attribute that is not equal to itself."""

    def __init__(self) -> None:
        super().__init__(int)
        self.fill = float("nan")


def test_a_number_that_is_not_equal_to_itself_does_not_change() -> None:
    assert load_here(Unset()) == ""


POOL = ThreadPoolExecutor(1)


class Submitting(Reading):
    """Samples from a global pool of threads."""

    def __init__(self) -> None:
        super().__init__(int)

    def __getitem__(self, index: int) -> int:
        return POOL.submit(int, index).result()


def test_a_global_pool_of_threads() -> None:
    assert "workers would not have the dataset's threads" in load_here(Submitting())
    POOL.shutdown()


ENTROPY = random.SystemRandom()
OF_THE_TRAINING = random.Random(0)


class Drawing(Reading):
    """Samples with numbers of the system, of a dataset that is made with a generator that the training uses."""

    def __init__(self) -> None:
        super().__init__(int)
        self._first = int(2 * OF_THE_TRAINING.random())

    def __getitem__(self, index: int) -> int:
        return super().__getitem__(index + 0 * int(ENTROPY.random()))


def test_generators_of_the_training_and_of_the_system_are_no_reason() -> None:
    assert load_here(Drawing(), between=OF_THE_TRAINING.random) == ""


def test_the_methods_of_a_class_are_read_once_however_many_objects_it_has() -> None:
    samples = [{"image": Reading(int), "label": Reading(abs)} for _ in range(1000)]
    with mock.patch.object(dis, "get_instructions", return_value=()) as read:
        assert sum(type(one) is Reading for one in list_objects(samples)) == 2000
    assert 0 < read.call_count < 1000


def test_a_number_that_loading_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert converge(CountingCalls()).controller.settings.workers == 0
    assert "workers would change copies of `calls`" in capsys.readouterr().err


class Replay(Dataset[int]):
    """A buffer that the training fills after each batch."""

    def __init__(self, *, has_attribute: bool) -> None:
        self.rows = np.arange(LENGTH)
        self.used = 8 if has_attribute else np.array(8)

    def __len__(self) -> int:
        return int(self.used)

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        return int(self.rows[index])

    def grow(self) -> None:
        self.used += 8


@pytest.mark.parametrize(("has_attribute", "name"), [(True, "`used`"), (False, "the length")])
def test_a_dataset_that_the_training_changes_after_each_batch(
    has_attribute: bool, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = Replay(has_attribute=has_attribute)
    loader: Any = autopilot(DataLoader(dataset, 8, sampler=range(LENGTH)), None)
    for _ in loader:
        dataset.grow()
        if loader.autopilot_state.controller.has_converged:
            break
    assert loader.autopilot_state.controller.settings.workers == 0
    assert f"workers would not see that the training changes {name} of the dataset" in capsys.readouterr().err


def make_local(samples: list[int]) -> Any:
    return type("Batch", (), {"tolist": lambda self: samples})()


def make_differentiable(samples: list[int]) -> torch.Tensor:
    return torch.ones(len(samples), requires_grad=True) * 2


@pytest.mark.parametrize(
    ("collate", "words"),
    [
        (make_local, "_pickle.PicklingError: Can't"),
        (make_differentiable, "RuntimeError: Cowardly refusing to serialize"),
    ],
)
def test_a_batch_that_no_worker_could_send(collate: Any, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    loader: Any = autopilot(DataLoader(Reading(int), 8, collate_fn=collate), None)
    for _ in loader:
        if loader.autopilot_state.controller.has_converged:
            break
    assert loader.autopilot_state.controller.settings.workers == 0
    assert f"a worker could not send a batch ({words}" in capsys.readouterr().err


def test_a_file_of_a_dataset_that_starts_with_the_workers_of_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_result_of(Reading(int), tmp_path / "dltune.json")
    (tmp_path / "samples").write_bytes(bytes(range(256)))
    with (tmp_path / "samples").open("rb", buffering=0) as file:
        state = converge(Reading(Seeking(file)), profile=str(tmp_path / "dltune.json"))
    assert state.controller.settings.workers == 0
    assert "num_workers=0 stays: workers would share the position of" in capsys.readouterr().err


class SometimesRandom(Dataset[int]):
    """Draws a random number for some samples, as augmentations do."""

    def __init__(self, draw: Callable[[], object]) -> None:
        self._draw = draw

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        if index % 5 == 0:
            self._draw()
        return index


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), random.random, np.random.rand])
@pytest.mark.parametrize("world_size", [1, 2])
def test_processes_that_train_together_draw_no_numbers_that_workers_would_draw_in_others(
    draw: Callable[[], object], world_size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autotune.online.shared_state.is_distributed", lambda: world_size > 1)
    loader: Any = autopilot(DataLoader(SometimesRandom(draw), 8, shuffle=True), None)
    for _ in loader:
        if loader.autopilot_state.controller.has_converged or len(loader.autopilot_state.controller.windows) > 1:
            break
    printed = "loading draws random numbers, which must stay equal in all ranks" in capsys.readouterr().err
    assert printed is (world_size > 1)


def test_the_shuffling_of_processes_that_train_together_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.online.shared_state.is_distributed", lambda: True)
    loader: Any = autopilot(DataLoader(Reading(int), 8, shuffle=True), None)
    for _ in loader:
        if len(loader.autopilot_state.controller.windows) > 1:
            break
    assert loader.autopilot_state.controller.failure == ""


@pytest.mark.parametrize(("processes", "kept"), [(1, 8), (3, 12)])
def test_of_the_results_of_several_processes_the_one_with_the_most_workers_stays(
    processes: int, kept: int, tmp_path: Path
) -> None:
    path = tmp_path / "dltune.json"
    for workers in (4, 12, 8):
        save_result_of(Reading(int), path, workers, processes=processes)
    assert [one.dataloader.num_workers for one in read_profiles(path)] == [kept]


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_process_replaces_its_own_result_and_one_that_is_incomplete(is_complete: bool, tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    before = save_result_of(Reading(int), path, 12, processes=2, is_complete=is_complete)
    save_result_of(Reading(int), path, 4, processes=2, before=before if is_complete else None)
    assert [one.dataloader.num_workers for one in read_profiles(path)] == [4]


def save_result_of(
    dataset: Any, path: Path, workers: int = 4, *, processes: int = 1, **options: Any
) -> TunedProfile | None:
    facts = read_facts(DataLoader(dataset, 8), processes)
    controller = Controller(WorkerSettings(0, 2), WorkerSettings(0, 2), 2.0, lambda prefetch, kept: 64)
    for number in (0, workers):
        controller.settings = WorkerSettings(number, 2)
        controller.windows[controller.settings] = Window(100.0 * (1 + number), 1.0, 0.5)
    controller.has_converged = True
    return save_result(path, facts, controller, 60.0, **options)


def test_a_file_that_only_the_training_uses_is_no_reason(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        loader: Any = autopilot(DataLoader(Reading(int), 8), None, quiet=True)
        for _ in loader:
            log.write("step")
            log.flush()
            if loader.autopilot_state.controller.settings.workers > 1:
                break
    assert loader.autopilot_state.controller.settings.workers > 1


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


def test_a_cache_of_a_class_of_python_or_torch_is_none_of_the_dataset() -> None:
    loader: Any = autopilot(DataLoader(Reading(int), 8), None)
    generic: Any = Dataset
    for clear in typing._cleanups:  # type: ignore[attr-defined]  # full caches do not grow
        clear()
    for number, _ in enumerate(loader):
        generic[type(f"Kind{number}", (), {})]  # `Generic` keeps it
        if len(loader.autopilot_state.controller.windows) > 1:  # it was looked at
            break
    assert loader.autopilot_state.controller.failure == ""
