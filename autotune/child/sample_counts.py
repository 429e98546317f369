"""Counts samples, and checks that an epoch delivered all of them: losing or repeating data makes a throughput void."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from autotune.profiles.device_prefetch import find_tensors

DUPLICATED_RATIO: Final = 1.5  # times the samples of one process
INCOMPLETE_RATIO: Final = 0.75  # of them
SHRUNK_EPOCH_RATIO: Final = 0.5  # of an earlier epoch; a shorter one has ended early


class SampleCountError(Exception):
    """An epoch delivered a wrong number of batches or samples; the text continues "the trial"."""


def count_samples(batch: Any, batch_size: int | None, unknown: int = 1) -> int:
    """Return the number of samples in a batch: the rows of its tensors or arrays, or the length of its first sequence.

    If any tensor or list is as long as the batch size, if that is known, that is it: others may hold something else,
    such as boxes or images. A short batch that has lists is as long as the longest part below that. If the batch size
    is not known, `unknown` is returned for a batch without any of these.
    """
    expected = batch_size or 0
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    is_sequence = isinstance(parts, Sequence) and not isinstance(parts, str | bytes)
    lists = [len(one) for one in (parts, *parts) if isinstance(one, list | tuple)] if is_sequence else []
    is_column = expected == 1 and not isinstance(batch, list)  # a tuple of one tensor, which may hold several samples
    if expected and expected in lists[is_column:]:  # before all of its values are looked at
        return expected
    lengths = [tensor.size(0) for tensor in find_tensors(batch) if tensor.dim()]
    columns = parts if isinstance(parts, list | tuple) else [parts]
    arrays = [one for one in columns if _is_array(one)]
    rows = [len(one) for one in arrays]
    are_rows = len(columns) != expected and set(rows) == {expected}
    if are_rows or columns is not batch or len({one.ndim for one in arrays}) > 1:  # else each may be a sample
        lengths += rows
    if expected and expected in lengths:
        return expected
    short = [one for one in (*lengths[:1], *lists) if one < expected]
    if short and (lists[1:] or lengths[:1] == short[:1]):
        return max(short)
    if lengths:
        return lengths[0]
    if is_sequence:
        return len(parts[0] if parts and isinstance(parts[0], list | tuple) else parts)
    return batch_size or unknown


def _is_array(one: Any) -> bool:
    """Return whether an object has rows as arrays of numpy and JAX do."""
    return hasattr(type(one), "__array__") and not isinstance(one, torch.Tensor) and getattr(one, "ndim", 0) > 0


@dataclass(slots=True)
class SampleCountTracker:
    """Compares the samples that workers deliver with those that an iterable dataset delivers in one process."""

    samples: int | None = None  # of an epoch in one process; None if unknown
    is_claimed: bool = False  # by the length of the dataset; then no epoch was counted
    are_duplicated: bool = False  # each worker delivers a whole epoch, as the probe has found
    reads_worker_info: bool = False  # then workers may each draw an epoch, as of shards drawn with replacement

    def is_multiplied(self, samples: int) -> bool:
        """Return whether only workers that each deliver a whole epoch deliver so many samples."""
        return self.samples is not None and samples > DUPLICATED_RATIO * self.samples > 0

    def check_shares(self, delivered: int, *, dropped: int, is_whole: bool) -> None:
        """Raise SampleCountError if workers repeat data, or leave out more than `dropped` samples of last batches."""
        if self.are_duplicated or (self.is_multiplied(delivered) and not self.reads_worker_info):
            raise SampleCountError(
                f"delivered {delivered} samples of a dataset {self._describe()}each of its workers returns all the "
                "data. Shard it in __iter__ by get_worker_info(), or tune with --max-workers 1"
            )
        if is_whole and delivered + dropped < INCOMPLETE_RATIO * (self.samples or 0):
            raise SampleCountError(
                f"delivered {delivered} samples of a dataset {self._describe()}the shards of its workers leave some "
                "out. Check how __iter__ uses get_worker_info()"
            )

    def _describe(self) -> str:
        if self.is_claimed:
            return f"whose length is {self.samples}: it is wrong, or "
        return f"of {'unknown length' if self.samples is None else self.samples}: "


def check_batches(arrived: int, handed_out: int | None, earlier: Sequence[int] | None) -> None:
    """Raise SampleCountError if batches are missing of those `handed_out` by the sampler, or of a whole epoch.

    `earlier` are the numbers of batches of earlier whole epochs; None if this one was ended early.
    """
    if handed_out is not None and arrived < handed_out:
        raise SampleCountError(
            f"ended an epoch after {arrived} of {handed_out} batches without an error. "
            "A StopIteration raised inside __getitem__ or collate_fn does this: raise another error there"
        )
    if earlier is not None and not earlier and not arrived:
        raise SampleCountError(
            "delivered no batch at all: the dataset is empty, shorter than one batch with drop_last (give a smaller "
            "--batch-size), or can be iterated only once (start again in every __iter__)"
        )
    if earlier and arrived < SHRUNK_EPOCH_RATIO * max(earlier):
        raise SampleCountError(
            f"ended an epoch after {arrived} batches, and one before it had {max(earlier)}. "
            "A dataset or sampler that can be iterated only once does this: start again in every __iter__"
        )
