"""What workers would wrongly share with the training process, or with each other, if they were forked from it now."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import distributed

from autotune.online.dataset_objects import (
    CONTAINERS,
    count_entries,
    find_open_file,
    is_connection,
    is_generator,
    is_running_thread,
    list_generators,
    list_global_generators,
    list_objects,
    read_attributes,
    read_random_state,
)
from autotune.profiles.device_prefetch import find_tensors
from autotune.system.procfs import PROC, SENT_BYTES, read_file_positions, read_tcp_bytes, read_text

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

MIN_GROWTH: Final = 3  # entries; a file that is opened at the first sample may add one
COMPARED_VALUES: Final = 64  # of a tensor
WATCHED_LOADS: Final = 3  # of the first batches: reading the connections takes 30 us
WATCHED_DRAWS: Final = 50  # batches, in which random numbers and files are watched: some augmentations are rare
FEW_GENERATORS: Final = 3  # reading the state of each takes 20 to 100 us
MANY_GENERATORS: Final = 50
START_WITH_ONE: Final = "to tune all the same, start with num_workers=1"
OPEN_LATER: Final = "open it in the first call of __getitem__"
CONNECT_LATER: Final = "connect in __getitem__"
AND_START: Final = ", and start with num_workers=1"
_File = tuple[str, str]  # descriptor and path
_SIMPLE: Final = (bool, int, float, str)


class _Reading(NamedTuple):
    """What loading a batch may change."""

    positions: dict[_File, int]  # of open files
    sent: dict[_File, int]  # bytes, by connection
    attributes: dict[str, Any]  # of the dataset
    random_states: list[Any]
    global_states: list[Any]  # of the random generators of Python, torch and numpy


class SharedState:
    """Finds files, connections, random generators, threads and caches of a dataset that loading here uses.

    Forked workers share the position of an open file and the data of a connection. Each has a copy of a generator and
    of a cache, and no thread.
    """

    def __init__(self) -> None:
        self._files: dict[_File, int] | None = read_file_positions()  # that are open before the first batch
        self._sizes: list[tuple[Any, int]] | None = None  # containers of the dataset, and their entries
        self._loads = 0  # so far, of which the first are watched closely
        self._before = _Reading({}, {}, {}, [], [])  # a batch that loads
        self._read, self._opened = set[_File](), set[_File]()  # files that loading reads, and has opened
        self._generators, self._others = list[Any](), list[Any]()  # random ones of the dataset, and of the process
        self._draws = False  # whether loading draws from them
        self._globals = list[Any]()  # generators that ranks may keep equal
        self._draws_globals = False
        self._dataset: weakref.ref[Any] | None = None  # whose containers and generators are noted
        self._used = Counter[str]()  # what loads used, and how many
        self._attributes: dict[str, Any] = {}  # after the last load
        self._tensors: dict[Any, tuple[Any, Any]] = {}  # of the last batch, by place, and some of their values

    def note(self, loader: DataLoader[Any]) -> None:
        """Note the state before the training process first loads batches itself."""
        if self._files is None:
            self._files = read_file_positions()
        if self._sizes is None:
            self._sizes = []
            with suppress(TypeError):  # a list, for example
                self._dataset = weakref.ref(loader.dataset, self._forget)
            with suppress(Exception):  # of the user's classes; another thread may change the dataset
                found = list(list_objects(loader.dataset))
                self._sizes = [(one, count_entries(one)) for one in found if issubclass(type(one), CONTAINERS)]
                self._generators = [one for one in found if is_generator(one)]
                self._others = list_generators()
            self._globals = list_global_generators() if is_distributed() else []

    def _forget(self, _: object) -> None:
        """Leave what a dataset referred to: it no longer exists."""
        self._sizes, self._generators, self._attributes, self._tensors = None, [], {}, {}

    def begin_load(self, loader: DataLoader[Any]) -> None:
        """Note what loading a batch in the training process may use."""
        attributes, sent = dict[str, Any](), dict[_File, int]()
        if self._loads < WATCHED_LOADS:
            attributes = _read_simple_attributes(loader)
            sent = read_tcp_bytes(SENT_BYTES)  # after a length that asks a server
            changed = _list_changed(self._attributes, attributes)
            self._used.update(f"not see that the training changes {one} of the dataset" for one in changed)
        self._before = _Reading(self._read_positions(), sent, attributes, *self._read_random_states())

    def end_sampling(self) -> None:
        """Note that what the load has drawn so far were the indices of the batch, not its samples."""
        states, global_states = self._read_random_states()
        self._before = self._before._replace(random_states=states, global_states=global_states)

    def end_load(self, loader: DataLoader[Any], batch: Any) -> None:
        """Note what loading a batch has used."""
        positions, sent, attributes, states, global_states = self._before
        now_states, now_global_states = self._read_random_states()
        self._draws |= len(now_states) == len(states) and now_states != states  # else a dataset has ended meanwhile
        self._draws_globals |= now_global_states != global_states
        self._read.update(file for file, at in self._read_positions().items() if positions.get(file, at) != at)
        if not self._loads and self._sizes is not None:  # what the first batch prepares is no cache
            self._sizes = [(one, count_entries(one)) for one, _ in self._sizes]
        if self._loads < WATCHED_LOADS:
            self._opened.update(one for one in read_file_positions() if one not in (self._files or ()))
            now, self._attributes = read_tcp_bytes(SENT_BYTES), _read_simple_attributes(loader)
            used = (one[1] for one, at in now.items() if sent.get(one, at) != at)
            self._used.update(f"share the connection to {one}; {CONNECT_LATER}{AND_START}" for one in used)
            changed = _list_changed(attributes, self._attributes)
            self._used.update(f"change copies of {one}; {START_WITH_ONE}" for one in changed)
            if self._has_overwritten(batch):
                self._used["overwrite tensors of earlier batches; return new ones"] += 1
            if (loss := _find_loss(batch)) is not None:
                self._used[loss] += 1
        self._loads += 1
        if self._loads == WATCHED_LOADS:
            self._tensors = {}

    def _has_overwritten(self, batch: Any) -> bool:
        """Return whether a batch has a tensor of the batch before, with other values."""
        with suppress(Exception):  # of a type of its own
            before = self._tensors  # which exist, so that no new tensor has their place
            tensors = list(find_tensors(batch))
            places = [(one.data_ptr(), one.shape, one.stride(), one.dtype) for one in tensors]
            self._tensors = {place: (one, _read_values(one)) for place, one in zip(places, tensors, strict=True)}
            same = [place for place in self._tensors if place in before]
            return any(not torch.equal(before[one][1], self._tensors[one][1]) for one in same)
        return False

    def _read_random_states(self) -> tuple[list[Any], list[Any]]:
        """Read the states of generators; those that cannot be traced to the dataset, for the first batches only."""
        is_watched = self._loads < WATCHED_DRAWS
        watched = self._generators[:FEW_GENERATORS] if is_watched else []
        watched += self._others[:MANY_GENERATORS] if self._loads < WATCHED_LOADS else []
        watched_globals = self._globals if is_watched else []
        return [read_random_state(one) for one in watched], [read_random_state(one) for one in watched_globals]

    def _read_positions(self) -> dict[_File, int]:
        found = {}
        for file in (*(self._files or ()), *self._opened) if self._loads < WATCHED_DRAWS else ():
            with suppress(OSError):  # it is closed
                found[file] = os.lseek(int(file[0]), 0, os.SEEK_CUR)
        return found

    def explain(self, loader: DataLoader[Any], batches: int) -> str:
        """Return why no workers may be forked, after loading so many batches; empty if they may."""
        known, self._files = self._files, None
        sizes, self._sizes = self._sizes or [], None
        if known is None:  # the workers that run may load in this way already
            return ""
        reason = self._explain_file(known, has_workers=loader.num_workers > 0)
        is_prepared = loader.num_workers > 0 and loader.worker_init_fn is not None  # which may connect again
        if reason or loader.num_workers > 1 or is_prepared:
            return reason
        objects = list(list_objects(loader.dataset))
        if any(map(is_connection, objects)):
            start = "" if loader.num_workers else AND_START
            return f"workers would share the dataset's connection; {CONNECT_LATER}{start}"
        if loader.num_workers:
            return _explain_open_file(objects)
        if self._draws_globals:
            return f"loading draws random numbers, which must stay equal in all ranks; {START_WITH_ONE}"
        for used, loads in self._used.items():
            if loads > 1:  # the first use may connect, or prepare the dataset
                return f"workers would {used}"
        if any(map(is_running_thread, objects)):
            return f"workers would not have the dataset's threads; {START_WITH_ONE}"
        noted = {id(one) for one in (*self._generators, *self._others)}
        has_new = self._loads and any(is_generator(one) and id(one) not in noted for one in objects)
        if loader.worker_init_fn is None and (self._draws or has_new):
            return "each worker would repeat the random numbers of the dataset's generator; seed it in worker_init_fn"
        if any(count_entries(one) - size >= max(MIN_GROWTH, batches - 1) for one, size in sizes):
            return "the dataset keeps what it loads, and each worker would have a cache of its own"
        return _explain_open_file(objects)

    def _explain_file(self, known: dict[_File, int], *, has_workers: bool) -> str:
        """Return which file workers would share; `known` are the positions before the first batch."""
        mapped = _list_mapped()
        for file, position in read_file_positions().items():
            is_shared = file in self._read
            if file in known:  # the user's workers, too, may read it
                is_shared |= has_workers and position != known[file]
            elif position > 0 and file[1] not in mapped:  # of a map, a header was read
                with suppress(OSError):  # it is closed
                    is_shared |= fcntl.fcntl(int(file[0]), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if is_shared:
                advice = OPEN_LATER if file in known else "start with num_workers=1"
                return f"workers would share the position of {file[1]}; {advice}"
        return ""


def is_distributed() -> bool:
    """Return whether this process trains together with others."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _explain_open_file(objects: list[Any]) -> str:
    files = set(filter(None, map(find_open_file, objects))) - _list_mapped()
    return f"workers would share the position of {min(files)}; {OPEN_LATER}" if files else ""


def _list_mapped() -> set[str]:
    return {line.split(maxsplit=5)[-1] for line in read_text(PROC / "self" / "maps").splitlines()}


def _read_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a few values, from all over a tensor."""
    values = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // COMPARED_VALUES)]
    return values.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _find_loss(batch: Any) -> str | None:
    """Return what tensors of a batch would lose, because torch does not send it to another process."""
    with suppress(Exception):  # of a type of its own
        for one in find_tensors(batch):
            if one.is_conj() or one.is_neg():
                return "lose the conjugation of tensors; return batch.resolve_conj().resolve_neg()"
            if type(one) is torch.Tensor and vars(one):
                return "lose the attributes of tensors; return these in the batch"
    return None


def _read_simple_attributes(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the numbers and texts that a dataset and a `collate_fn` have as attributes, and the dataset's length."""
    found = {f"`{name}`": value for name, value in read_attributes(loader.dataset).items()}
    found |= {f"`collate_fn.{name}`": value for name, value in read_attributes(loader.collate_fn).items()}
    with suppress(Exception):  # of the user's class
        found["the length"] = len(loader.dataset)  # type: ignore[arg-type]
    return {name: value for name, value in found.items() if any(type(value) is one for one in _SIMPLE)}


def _list_changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    same = [one for one in before if one in after]
    return [one for one in same if before[one] is not after[one] and before[one] != after[one]]
