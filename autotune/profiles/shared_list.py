"""A list in one block of bytes, which all workers read without copying it.

Python changes the reference count of every object that it reads, so forked workers copy a list of a million dicts page
by page (pytorch/pytorch#13246). Bytes have no counts: each entry is pickled, and unpickled whenever it is read.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class SharedList(Sequence[T]):
    """An immutable list, pickled in two tensors, whose memory all workers share, whether they are forked or not."""

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
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        begin, end = self._ends[position : position + 2].tolist()
        entry: T = pickle.loads(self._data[begin:end].numpy().data)  # noqa: S301  # pickled by this class
        return entry


def shared(items: Iterable[T]) -> SharedList[T]:
    """Store a long list of picklable entries so that all workers share it; each read creates a new object."""
    return SharedList(items)
