"""What workers would wrongly share with the training process, or with each other, if they were forked from it now."""

from __future__ import annotations

import dis
import fcntl
import functools
import gc
import io
import itertools
import logging
import os
import pickle
import random
import socket
import stat
import sys
import tempfile
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from multiprocessing.connection import _ConnectionBase
from multiprocessing.managers import BaseProxy
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.system.procfs import PROC, read_file_positions, read_sent_bytes, read_text
from autotune.system.software import is_library

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

MAX_OBJECTS: Final = 100_000  # of a dataset that are looked at: up to a second
MAX_ENTRIES: Final = 1000  # of a container
MIN_GROWTH: Final = 3  # entries; a file that is opened at the first sample may add one
WATCHED_LOADS: Final = 3  # of the first batches: reading the connections takes 30 us
WATCHED_DRAWS: Final = 50  # batches: some augmentations are rare
FEW_GENERATORS: Final = 3  # reading the state of each takes 20 to 100 us
MANY_GENERATORS: Final = 50
_File = tuple[str, str]  # descriptor and path
_SIMPLE: Final = (bool, int, float, str)
_MADE_FOR_FORKS: Final = (logging.Logger, logging.Handler, BaseProxy, Queue)  # their connections may be shared
_SKIPPED: Final = (type, ModuleType, FunctionType, CodeType, FrameType, *_MADE_FOR_FORKS)
_GROWING: Final[tuple[Any, ...]] = (dict, list, set, deque)
_SHARED: Final[tuple[Any, ...]] = (functools._lru_cache_wrapper, *_GROWING)
_THREADED: Final = (threading.Thread, Executor)


class SharedState:
    """Finds files, connections, random generators, threads and caches of a dataset that loading here uses.

    Forked workers share the position of an open file and the data of a connection. Each has a copy of a generator and
    of a cache, and no thread.
    """

    def __init__(self) -> None:
        self._files: dict[_File, int] | None = read_file_positions()  # that are open before the first batch
        self._sizes: list[tuple[Any, int]] | None = None  # containers of the dataset, and their entries
        self._loads = 0  # so far, of which the first are watched closely
        self._before: tuple[dict[_File, int], dict[_File, int], dict[str, Any], list[Any]] = {}, {}, {}, []
        self._read, self._opened = set[_File](), set[_File]()  # files that loading reads, and has opened
        self._unsendable = ""  # why no worker could send a batch
        self._generators, self._others = list[Any](), list[Any]()  # random ones of the dataset, and of the process
        self._draws = False  # whether loading draws from them
        self._used = Counter[str]()  # connections and attributes that loads used, and how many

    def note(self, loader: DataLoader[Any]) -> None:
        """Note the state before the training process first loads batches itself."""
        if self._files is None:
            self._files = read_file_positions()
        if self._sizes is None:
            self._sizes = []
            with suppress(Exception):  # of the user's classes; another thread may change the dataset
                found = list(_list_objects(loader.dataset))
                self._sizes = [(one, _count_entries(one)) for one in found if issubclass(type(one), _GROWING)]
                self._generators = [one for one in found if _is_generator(one)]
                kinds = _list_generator_types()
                self._others = [one for one in gc.get_objects() if issubclass(type(one), kinds) and _is_generator(one)]

    def begin_load(self, dataset: Any) -> None:
        """Note what loading a batch in the training process may use."""
        is_close = self._loads < WATCHED_LOADS
        sent, attributes = (read_sent_bytes(), _read_simple_attributes(dataset)) if is_close else ({}, {})
        self._before = self._read_positions(), sent, attributes, self._read_random_states()

    def end_sampling(self) -> None:
        """Note that what the load has drawn so far were the indices of the batch, not its samples."""
        self._before = *self._before[:3], self._read_random_states()

    def end_load(self, dataset: Any, batch: Any) -> None:
        """Note what loading the batch has used, and whether a worker could send it."""
        if not self._loads:
            try:
                _BatchPickler(io.BytesIO()).dump(batch)
            except Exception as error:
                self._unsendable = f"a worker could not send a batch ({error})"
        positions, sent, attributes, states = self._before
        self._draws |= states != self._read_random_states()
        self._read.update(file for file, at in self._read_positions().items() if positions.get(file, at) != at)
        if not self._loads and self._sizes is not None:  # what the first batch prepares is no cache
            self._sizes = [(one, _count_entries(one)) for one, _ in self._sizes]
        if self._loads < WATCHED_LOADS:
            self._opened.update(one for one in read_file_positions() if one not in (self._files or ()))
            now, changed = read_sent_bytes(), _read_simple_attributes(dataset)
            used = (f"share the connection to {one[1]}" for one, at in now.items() if sent.get(one, at) != at)
            self._used.update(used)
            same = attributes.keys() & changed.keys()
            differing = (one for one in same if attributes[one] is not changed[one] and attributes[one] != changed[one])
            self._used.update(f"change copies of `{one}`" for one in differing)
        self._loads += 1

    def _read_random_states(self) -> list[Any]:
        """Read the states of generators; those that cannot be traced to the dataset, for the first batches only."""
        watched = self._generators[:FEW_GENERATORS] if self._loads < WATCHED_DRAWS else []
        watched += self._others[:MANY_GENERATORS] if self._loads < WATCHED_LOADS else []
        return [_read_random_state(one) for one in watched]

    def _read_positions(self) -> dict[_File, int]:
        found = {}
        for file in (*(self._files or ()), *self._opened):
            with suppress(OSError):  # it is closed
                found[file] = os.lseek(int(file[0]), 0, os.SEEK_CUR)
        return found

    def explain(self, loader: DataLoader[Any], batches: int) -> str:
        """Return why no workers may be forked, after loading so many batches; empty if they may."""
        known, self._files = self._files, None
        sizes, self._sizes = self._sizes or [], None
        if known is None:  # the workers that run may load in this way already
            return ""
        if reason := self._explain_file(known, has_workers=loader.num_workers > 0) or self._unsendable:
            return reason
        if loader.num_workers:  # whose `worker_init_fn` may connect again
            return ""
        for used, loads in self._used.items():
            if loads > 1:  # the first use may connect, or prepare the dataset
                return f"workers would {used}; to tune all the same, start with num_workers=1"
        objects = list(_list_objects(loader.dataset))
        threads = (one for one in objects if issubclass(type(one), threading.Thread))
        if any(one.is_alive() and one is not threading.main_thread() for one in threads):
            return "workers would not have the dataset's threads; to tune all the same, start with num_workers=1"
        noted = {id(one) for one in (*self._generators, *self._others)}
        has_new = self._loads and any(_is_generator(one) and id(one) not in noted for one in objects)
        if loader.worker_init_fn is None and (self._draws or has_new):
            return "each worker would repeat the random numbers of the dataset's generator; seed it in worker_init_fn"
        if any(map(_is_connection, objects)):
            return "workers would share the dataset's connection; connect in __getitem__, and start with num_workers=1"
        if any(_count_entries(one) - size >= max(MIN_GROWTH, batches - 1) for one, size in sizes):
            return "the dataset keeps what it loads, and each worker would have a cache of its own"
        return ""

    def _explain_file(self, known: dict[_File, int], *, has_workers: bool) -> str:
        """Return which file workers would share; `known` are the positions before the first batch."""
        mapped = {line.split(maxsplit=5)[-1] for line in read_text(PROC / "self" / "maps").splitlines()}
        for file, position in read_file_positions().items():
            if file not in known:
                mode = _read_mode(int(file[0]))
                is_new = position > 0 and mode == os.O_RDONLY and file[1] not in mapped  # of a map, a header was read
                is_shared = is_new or (file in self._read and mode != os.O_WRONLY)
            else:  # the user's workers, too, may read it
                is_shared = file in self._read or (has_workers and position != known[file])
            if is_shared:
                advice = "open it in the first call of __getitem__" if file in known else "start with num_workers=1"
                return f"workers would share the position of {file[1]}; {advice}"
        return ""


class _BatchPickler(ForkingPickler):
    """Pickles a batch as for another process, but for its tensors."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        if value.requires_grad and not value.is_leaf:
            raise TypeError("a tensor with a gradient")
        return int, ()


def _read_mode(descriptor: int) -> int:
    """Return whether a file is open for reading, writing or both; as for writing if it is closed."""
    with suppress(OSError):
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    return os.O_WRONLY


def _is_generator(one: Any) -> bool:
    """Return whether an object is a random generator of Python, numpy or torch, other than those that torch seeds."""
    if not issubclass(type(one), _list_generator_types()) or issubclass(type(one), random.SystemRandom):
        return False
    numpy = sys.modules.get("numpy.random")
    names = getattr(tempfile, "_name_sequence", None)  # each process makes its own generator
    seeded = (
        *(getattr(random, "_inst", None), getattr(names, "_rng", None)),
        *(torch.default_generator, numpy and numpy.mtrand._rand),
    )
    return not any(one is each for each in seeded)


def _list_generator_types() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy.random")
    return (random.Random, torch.Generator, *((numpy.Generator, numpy.RandomState) if numpy else ()))


def _read_random_state(one: Any) -> Any:
    """Return the state of a random generator; None if it cannot be read."""
    with suppress(Exception):  # of a class of the user's
        return one.get_state().tolist() if issubclass(type(one), torch.Generator) else pickle.dumps(one)
    return None


def _read_attributes(one: Any) -> dict[str, Any]:
    """Return the attributes of an object without calling a `__getattr__` of the user's."""
    with suppress(Exception):  # it has none
        return dict(object.__getattribute__(one, "__dict__"))
    return {}


def _read_simple_attributes(dataset: Any) -> dict[str, Any]:
    """Return the numbers and texts that a dataset has as attributes."""
    found = _read_attributes(dataset)
    return {name: value for name, value in found.items() if any(type(value) is one for one in _SIMPLE)}


def _count_entries(one: Any) -> int:
    """Return the length of a container without calling code of the user's own class.

    Of a list, what is not None counts, and no weak references: pandas keeps one for each row that it has returned.
    """
    if type(one) is list:
        return sum(each is not None and type(each) is not weakref.ref for each in one)
    return next(int(kind.__len__(one)) for kind in _GROWING if issubclass(type(one), kind))


def _list_objects(root: Any) -> Iterator[Any]:
    """Yield the objects that a dataset refers to, the nearest first, and what its classes and functions share."""
    queue, seen = deque([root]), {id(root)}
    kinds, codes = set[int](), set[CodeType]()  # of which members and global names have been read
    while queue:
        one = queue.popleft()
        yield one
        kind = type(one)  # its `__class__` may be that of another object, which no longer exists
        container: Any = next((base for base in (*_GROWING, tuple) if issubclass(kind, base)), None)
        if container is not None:
            entries = dict.values(one) if container is dict else container.__iter__(one)
            found = [*itertools.islice(entries, MAX_ENTRIES), *_read_attributes(one).values()]
        else:
            found = list(gc.get_referents(one))
        members = [each for each in found if _is_own_function(each)]
        for base in kind.__mro__:
            if id(base) not in kinds and base.__module__ != "builtins":
                kinds.add(id(base))
                members += [getattr(each, "__func__", each) for each in list(vars(base).values())]
        for each in (*found, *_list_shared(members, codes)):
            found_kind = type(each)
            is_untracked = found_kind is dict or found_kind is torch.Generator  # a dict of numbers
            may_change = gc.is_tracked(each) or is_untracked
            is_new = may_change and id(each) not in seen and not issubclass(found_kind, _SKIPPED)
            if is_new and len(seen) < MAX_OBJECTS:
                seen.add(id(each))
                queue.append(each)


def _is_own_function(one: Any) -> bool:
    return type(one) is FunctionType and not is_library(one.__code__.co_filename)


def _list_shared(members: Iterable[Any], codes: set[CodeType]) -> Iterator[Any]:
    """Yield caches, containers, generators and threads among members, and those that functions among them use.

    Functions of the user's that these functions name count, too. Each code is read once.
    """
    for member in members:
        named = [member]
        if type(member) is FunctionType and member.__code__ not in codes:
            named = list(_list_named(member, codes))
            own = filter(_is_own_function, tuple(named))
            named += [each for one in own if one.__code__ not in codes for each in _list_named(one, codes)]
        for one in named:
            if any(type(one) is kind for kind in _SHARED) or issubclass(type(one), _THREADED) or _is_generator(one):
                yield one


def _list_named(function: FunctionType, codes: set[CodeType]) -> Iterator[Any]:
    """Yield the global objects that a function, or a function within it, names, and those in its closure."""
    yield from (each for cell in function.__closure__ or () for each in gc.get_referents(cell))
    inner = [function.__code__]
    while inner:
        code = inner.pop()
        codes.add(code)
        for one in dis.get_instructions(code):
            if one.opname == "LOAD_GLOBAL":
                yield function.__globals__.get(one.argval)
            elif type(one.argval) is CodeType:
                inner.append(one.argval)


def _is_connection(one: Any) -> bool:
    """Return whether an object is an open database of sqlite3, socket or pipe, other than the standard streams."""
    if (sqlite3 := sys.modules.get("sqlite3")) is not None and issubclass(type(one), sqlite3.Connection):
        with suppress(sqlite3.ProgrammingError):  # it is closed
            return bool(one.total_changes >= 0)
    if not issubclass(type(one), socket.socket | io.FileIO | _ConnectionBase):
        return False
    with suppress(OSError, ValueError):  # it is closed
        mode = os.fstat(one.fileno()).st_mode
        return one.fileno() > 2 and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode))
    return False
