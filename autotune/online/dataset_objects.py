"""The objects that a dataset refers to, and what its classes and functions share with other objects."""

from __future__ import annotations

import dis
import functools
import gc
import io
import itertools
import logging
import os
import pickle
import random
import stat
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from multiprocessing.managers import BaseProxy
from multiprocessing.queues import Queue, SimpleQueue
from multiprocessing.synchronize import SemLock
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, default_collate, default_convert

from autotune.system.software import is_library

MAX_OBJECTS: Final = 100_000  # of a dataset that are looked at: up to a second
MAX_NESTED: Final = 10  # datasets, such as a Subset of a dataset
MAX_ENTRIES: Final = 1000  # of a container
CONTAINERS: Final[tuple[Any, ...]] = (dict, list, set, deque)  # that may grow
_MADE_FOR_FORKS: Final = (logging.Logger, logging.Handler, BaseProxy, Queue, SimpleQueue)  # may share connections
_STANDARD: Final = sys.stdlib_module_names | {
    "torch"
}  # modules whose classes have caches of their own, as Generic does
_SKIPPED: Final = (type, ModuleType, FunctionType, CodeType, FrameType, *_MADE_FOR_FORKS)
_SHARED: Final[tuple[Any, ...]] = (functools._lru_cache_wrapper, *CONTAINERS)
_STREAM: Final[type] = io.IOBase.__mro__[1]  # of all streams; io.IOBase itself would hash classes of the user's
_FOLLOWED: Final = (threading.Thread, Executor, subprocess.Popen, _STREAM)


def loads_by_torch(loader: DataLoader[Any]) -> bool:
    """Return whether a loader runs code of torch alone, which changes no dataset: samples in memory, collated."""
    left, numpy = list[Any]([loader.dataset]), sys.modules.get("numpy")
    arrays: tuple[Any, ...] = (list, tuple, range, torch.Tensor, TensorDataset, *([numpy.ndarray] if numpy else ()))
    for one in left:
        if type(one) in (Subset, ConcatDataset):
            left += one.datasets if type(one) is ConcatDataset else [one.dataset]
        elif type(one) not in arrays:
            return False
    return loader.collate_fn in (default_collate, default_convert)


def list_objects(root: Any) -> Iterator[Any]:
    """Yield the objects that a dataset refers to, the nearest first, and what its classes and functions share."""
    queue, seen = deque([root]), {id(root)}
    kinds, codes = set[int](), set[CodeType]()  # of which members and global names have been read
    while queue:
        one = queue.popleft()
        yield one
        kind = type(one)  # its `__class__` may be that of another object, which no longer exists
        container: Any = next((base for base in (*CONTAINERS, tuple) if issubclass(kind, base)), None)
        if container is not None:
            entries = dict.values(one) if container is dict else container.__iter__(one)
            found = [*itertools.islice(entries, MAX_ENTRIES), *read_attributes(one).values()]
        else:
            found = list(gc.get_referents(one))
        members = [each for each in found if _is_own_function(each)]
        for base in kind.__mro__:
            if id(base) not in kinds and str(base.__module__).partition(".")[0] not in _STANDARD:
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
    """Yield caches, containers, generators, connections and threads among members and what functions among them use.

    Functions of the user's that these functions name count, too. Each code is read once.
    """
    for member in members:
        named = [member]
        if type(member) is FunctionType and member.__code__ not in codes:
            named = list(_list_named(member, codes))
            own = filter(_is_own_function, tuple(named))
            named += [each for one in own if one.__code__ not in codes for each in _list_named(one, codes)]
        for one in named:
            is_known = any(type(one) is kind for kind in _SHARED) or issubclass(type(one), _FOLLOWED)
            if is_known or is_generator(one) or is_connection(one):
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


def read_globals(dataset: Any) -> dict[str, Any]:
    """Return the numbers and texts, by file and name, that are globals which methods of the user's dataset name."""
    found, nested = dict[str, Any](), [dataset]
    while (inner := read_attributes(nested[-1]).get("dataset")) is not None and len(nested) < MAX_NESTED:
        nested.append(inner)
    members = (each for one in nested for base in type(one).__mro__ for each in list(vars(base).values()))
    for function in filter(_is_own_function, members):
        file = Path(function.__code__.co_filename).name
        named = ((name, function.__globals__.get(name)) for name in function.__code__.co_names)
        found |= {f"{name} of {file}": one for name, one in named if type(one) in (bool, int, float, str)}
    return found | {"torch's default dtype": str(torch.get_default_dtype())}


def read_attributes(one: Any) -> dict[str, Any]:
    """Return the attributes of an object without calling a `__getattr__` of the user's."""
    with suppress(Exception):  # it has none
        return dict(object.__getattribute__(one, "__dict__"))
    return {}


def count_entries(one: Any) -> int:
    """Return the length of a container without calling code of the user's own class.

    Of a list, what is not None counts, and no weak references: pandas keeps one for each row that it has returned.
    """
    if type(one) is list:
        return sum(each is not None and type(each) is not weakref.ref for each in one)
    return next(int(kind.__len__(one)) for kind in CONTAINERS if issubclass(type(one), kind))


def is_generator(one: Any) -> bool:
    """Return whether an object is a random generator of Python, numpy or torch, other than those that torch seeds."""
    if not issubclass(type(one), _list_generator_types()) or issubclass(type(one), random.SystemRandom):
        return False
    names = getattr(tempfile, "_name_sequence", None), getattr(SemLock, "_rand", None)  # each process makes its own
    seeded = (*list_global_generators(), *(getattr(each, "_rng", None) for each in names))
    return not any(one is each for each in seeded)


def list_global_generators() -> list[Any]:
    """List the generators that functions of Python, torch and numpy use, which torch seeds in each worker."""
    numpy = sys.modules.get("numpy.random")
    return [getattr(random, "_inst", None), torch.default_generator, *([numpy.mtrand._rand] if numpy else ())]


def list_generators() -> list[Any]:
    """List the random generators of this process."""
    kinds = _list_generator_types()
    return [one for one in gc.get_objects() if issubclass(type(one), kinds) and is_generator(one)]


def _list_generator_types() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy.random")
    return (random.Random, torch.Generator, *((numpy.Generator, numpy.RandomState) if numpy else ()))


def read_random_state(one: Any) -> Any:
    """Return the state of a random generator; None if it cannot be read."""
    with suppress(Exception):  # of a class of the user's
        return one.get_state().tolist() if issubclass(type(one), torch.Generator) else pickle.dumps(one)
    return None


def is_running_thread(one: Any) -> bool:
    """Return whether an object is a thread that runs, other than the main one."""
    return issubclass(type(one), threading.Thread) and one.is_alive() and one is not threading.main_thread()


def is_connection(one: Any) -> bool:
    """Return whether an object is an open database of sqlite3, or has an open socket or pipe but a standard stream."""
    if (sqlite3 := sys.modules.get("sqlite3")) is not None and issubclass(type(one), sqlite3.Connection):
        with suppress(sqlite3.ProgrammingError):  # it is closed
            return bool(one.total_changes >= 0)
    if _is_spooled(one):
        return False
    with suppress(Exception):  # it is closed, or of the user's class
        if (find_descriptor := getattr(type(one), "fileno", None)) is not None:
            mode = os.fstat(number := find_descriptor(one)).st_mode
            return number > 2 and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode))
    return False


def _is_spooled(one: Any) -> bool:
    """Return whether an object is a temporary file in memory, whose `fileno` writes it to a disk."""
    return any(base is tempfile.SpooledTemporaryFile for base in type(one).__mro__)


def find_open_file(one: Any) -> str:
    """Return the path of the regular file that an object has open; empty if it has none, or is a standard stream."""
    if issubclass(type(one), _STREAM) and not _is_spooled(one):
        with suppress(Exception):  # it is closed, or of the user's class
            if stat.S_ISREG(os.fstat(number := one.fileno()).st_mode) and number > 2:
                return str(Path(f"/proc/self/fd/{number}").readlink())
    return ""
