"""Which attribute of a dataset holds most memory in Python objects, of which each worker makes its own copy?"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

SAMPLED_ENTRIES: Final = 64  # of a collection, from which the rest is estimated
MAX_DEPTH: Final = 4  # of collections within collections
WRAPPERS: Final = ("dataset", "datasets")  # attributes by which datasets hold others
MAX_WRAPPED: Final = 4  # datasets within datasets


class HeldObjects(NamedTuple):
    """A collection of many objects."""

    place: str  # as in `dataset.infos`
    kind: str  # of the collection
    entries: int
    entry_kind: str
    nbytes: int  # estimated

    def describe(self) -> str:
        """Name it for a sentence."""
        return f"`{self.place}`, a {self.kind} of {self.entries:,} objects of type {self.entry_kind}"


def find_largest(dataset: Any, min_bytes: int) -> HeldObjects | None:
    """Find the collection of a dataset that holds most memory in objects, if it is that much."""
    found = max(_list_collections(dataset, "dataset"), key=lambda held: held.nbytes, default=None)
    return found if found is not None and found.nbytes >= min_bytes else None


def _list_collections(dataset: Any, place: str, depth: int = 0) -> Iterator[HeldObjects]:
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        if type(value) in (list, tuple, dict, set) and value:
            entry = next(iter(value.values() if isinstance(value, dict) else value))
            size = estimate_bytes(value)
            yield HeldObjects(f"{place}.{name}", type(value).__name__, len(value), type(entry).__name__, size)
        if name in WRAPPERS and depth < MAX_WRAPPED:
            for key, inner in enumerate(value) if isinstance(value, list | tuple) else [("", value)]:
                yield from _list_collections(inner, f"{place}.{name}{f'[{key}]' if key != '' else ''}", depth + 1)


def estimate_bytes(value: Any, depth: int = 0) -> int:
    """Estimate what an object and those within it take, from the first entries of each collection."""
    own = sys.getsizeof(value)
    if depth >= MAX_DEPTH or type(value) not in (list, tuple, dict, set, frozenset):
        return own
    parts = (value.keys(), value.values()) if type(value) is dict else (value,)
    return own + sum(_estimate_entries(part, depth) for part in parts)


def _estimate_entries(entries: Collection[Any], depth: int) -> int:
    sampled = [estimate_bytes(entry, depth + 1) for entry in itertools.islice(entries, SAMPLED_ENTRIES)]
    return sum(sampled) * len(entries) // max(1, len(sampled))
