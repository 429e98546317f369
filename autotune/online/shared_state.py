"""What workers would wrongly share with the training process, or with each other, if they were forked from it now."""

from __future__ import annotations

import functools
import gc
import io
import itertools
import os
import socket
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from autotune.system.procfs import read_file_positions

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

MAX_OBJECTS: Final = 100_000  # of a dataset that are looked at: 0.1 s
MAX_ENTRIES: Final = 1000  # of a container
MIN_GROWTH: Final = 3  # entries; a file that is opened at the first sample may add one
_SKIPPED: Final = (type, ModuleType, FunctionType, CodeType, FrameType)
_GROWING: Final[tuple[Any, ...]] = (dict, list, set, deque)


class SharedState:
    """Finds files, connections and caches of a dataset that loading in the training process uses.

    Workers share the position of an open file and the data of a connection. They do not share a cache: each would fill
    one of its own.
    """

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str], int] | None = read_file_positions()
        self._sizes: list[tuple[Any, int]] | None = None  # containers of the dataset, and their entries

    def note(self, loader: DataLoader[Any]) -> None:
        """Note the state before the training process first loads batches itself."""
        if self._positions is None:
            self._positions = read_file_positions()
        if self._sizes is None:
            containers = (one for one in _list_objects(loader.dataset) if issubclass(type(one), _GROWING))
            self._sizes = [(one, _count_entries(one)) for one in containers]

    def explain(self, loader: DataLoader[Any], batches: int) -> str:
        """Return why no workers may be forked, after loading so many batches; empty if they may."""
        before, self._positions = self._positions, None
        sizes, self._sizes = self._sizes or [], None
        if before is None:  # the workers that run may load in this way already
            return ""
        for file, position in read_file_positions().items():
            if position != before.get(file, 0):
                advice = "open it in the first call of __getitem__" if file in before else "start with num_workers=1"
                return f"workers would share the position of {file[1]}; {advice}"
        if loader.num_workers:  # whose `worker_init_fn` may connect again
            return ""
        if any(_count_entries(one) - size >= max(MIN_GROWTH, batches) for one, size in sizes):
            return "the dataset keeps what it loads, and each worker would have a cache of its own"
        if any(map(_is_connection, _list_objects(loader.dataset))):
            return "workers would share the dataset's connection; connect in __getitem__, and start with num_workers=1"
        return ""


def _count_entries(one: Any) -> int:
    """Return the length of a container without calling code of the user's own class."""
    return next(int(kind.__len__(one)) for kind in _GROWING if issubclass(type(one), kind))


def _list_objects(root: Any) -> Iterator[Any]:
    """Yield the objects that a dataset refers to, the nearest first, and caches of its methods."""
    queue, seen = deque([root]), {id(root)}
    while queue:
        one = queue.popleft()
        yield one
        kind = type(one)  # its `__class__` may be that of another object, which no longer exists
        if kind in {*_GROWING, tuple}:
            found = list(itertools.islice(one.values() if kind is dict else one, MAX_ENTRIES))
        else:
            methods = () if kind.__module__ == "builtins" else vars(kind).values()
            found = [each for each in methods if type(each) is functools._lru_cache_wrapper] + gc.get_referents(one)
        for each in found:
            may_grow = gc.is_tracked(each) or type(each) is dict  # one of numbers and text is not tracked
            is_new = may_grow and id(each) not in seen and not issubclass(type(each), _SKIPPED)
            if is_new and len(seen) < MAX_OBJECTS:
                seen.add(id(each))
                queue.append(each)


def _is_connection(one: Any) -> bool:
    """Return whether an object is an open socket or pipe, other than the standard streams."""
    if not issubclass(type(one), socket.socket | io.FileIO):
        return False
    with suppress(OSError, ValueError):  # it is closed
        mode = os.fstat(one.fileno()).st_mode
        return one.fileno() > 2 and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode))
    return False
