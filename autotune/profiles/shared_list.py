"""Keeps a long list in one block of bytes, which all workers read without copying it.

Python writes a count into every object that it looks at, so workers that are forked copy a list of a million dicts page
by page (pytorch/pytorch#13246). Bytes have no counts: each entry is pickled, and made anew whenever it is read.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class SharedList(Sequence[T]):
    """A list that cannot be changed, whose entries lie pickled in two tensors.

    Forked workers share the tensors' memory; those that are spawned, or start in a forkserver, are handed it through
    shared memory, as torch does with every tensor.
    """

    def __init__(self, items: Iterable[T]) -> None:
        import torch

        data, ends = bytearray(), [0]
        for item in items:
            data += pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)
            ends.append(len(data))
        self._ends = torch.tensor(ends, dtype=torch.int64)
        self._data: torch.Tensor = torch.frombuffer(data or bytearray(1), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._read(place) for place in range(*index.indices(len(self)))]
        return self._read(range(len(self))[index])

    def __repr__(self) -> str:
        return f"SharedList of {len(self):,} entries, {self._data.nbytes:,} bytes"

    def _read(self, place: int) -> T:
        begin, end = self._ends[place : place + 2].tolist()
        entry: T = pickle.loads(self._data[begin:end].numpy().data)  # noqa: S301  # what we pickled ourselves
        return entry


def shared(items: Iterable[T]) -> SharedList[T]:
    """Keep a long list of a dataset where its workers share it.

    Args:
        items: The entries, each of which can be pickled; they are pickled one by one.

    Returns:
        The same entries as a sequence that cannot be changed. Reading one makes a new object, at some microseconds for
        a small dict.
    """
    return SharedList(items)
