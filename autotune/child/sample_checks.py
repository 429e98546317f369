"""Holds what an epoch delivered against what the dataset has: one that loses or repeats data tells no throughput."""

from __future__ import annotations

from typing import Final

from autotune.child.probe_storage import SampleRead

DUPLICATED_RATIO: Final = 1.5  # times the samples of one process
INCOMPLETE_RATIO: Final = 0.75  # of them
SHRUNK_EPOCH_RATIO: Final = 0.5  # of an earlier epoch; a shorter one has ended early


class SampleCountError(Exception):
    """An epoch delivered another number of batches or samples than it should have; its text continues "the trial"."""


class SampleCountTracker:
    """Remembers how many samples an iterable dataset delivers in one process, to hold what workers deliver against.

    Attributes:
        samples: Of a whole epoch; None while none was seen.
        asks_which_worker: Whether its code was seen to ask which worker it runs in. Then what several workers deliver
            beyond that is meant: an epoch for each of them, as of shards that are drawn again and again.
        is_per_worker: Whether that was seen.
        idle_workers: Workers, of two, that delivered nothing while another did.
        reads: What samples took in one process, as they came; those of a batch alike.
    """

    def __init__(self) -> None:
        self.samples: int | None = None
        self.asks_which_worker = False
        self.is_per_worker = False
        self.idle_workers = 0
        self.reads: list[SampleRead] = []

    def is_multiplied(self, samples: int) -> bool:
        """Tell whether so many samples come only from workers that each deliver as many as one process."""
        return bool(self.samples) and samples > DUPLICATED_RATIO * (self.samples or 0)

    def is_exceeded(self, samples: int) -> bool:
        """Tell whether so many samples come from workers that each go through all of the data without knowing it."""
        return self.is_multiplied(samples) and not self.asks_which_worker

    def is_missed(self, samples: int) -> bool:
        """Tell whether a whole epoch of so many samples leaves data out."""
        return bool(self.samples) and samples < INCOMPLETE_RATIO * (self.samples or 0)

    def check_shares(self, delivered: int, *, dropped: int, is_whole: bool) -> None:
        """Hold what several workers delivered against one process; they may have `dropped` so many between them."""
        if self.is_exceeded(delivered):
            raise SampleCountError(
                f"delivered {delivered} samples of a dataset of {self.samples}: each of its workers goes through all "
                "of it. Share it out in __iter__ by get_worker_info(), or tune with --max-workers 1"
            )
        if is_whole and self.is_missed(delivered + dropped):
            raise SampleCountError(
                f"delivered {delivered} samples of a dataset of {self.samples}: the shares of its workers leave some "
                "out. Look at how __iter__ uses get_worker_info()"
            )


def check_handed_out(arrived: int, handed_out: int | None) -> None:
    """Hold the batches that arrived against those that the sampler handed out, where there is one."""
    if handed_out is not None and arrived < handed_out:
        raise SampleCountError(
            f"ended an epoch after {arrived} of {handed_out} batches without an error. "
            "A StopIteration raised inside __getitem__ or collate_fn does this: let it raise another error"
        )


def check_epoch_length(batches: int, earlier: list[int], epoch: int) -> None:
    """Hold a whole epoch against the whole ones before it; epochs count from 1."""
    longest = max(earlier, default=0)
    if epoch == 1 and not batches:
        raise SampleCountError(
            "delivered no batch at all: the dataset is empty, or shorter than one batch with drop_last. "
            "Give a smaller --batch-size"
        )
    if batches < SHRUNK_EPOCH_RATIO * longest:
        raise SampleCountError(
            f"ended epoch {epoch} after {batches} batches, and one before it had {longest}. "
            "A dataset or sampler that can be gone through only once does this: start anew in every __iter__"
        )


def check_fetched(delivered: int, asked: int, batch_size: int) -> None:
    """Hold samples that were fetched by whole batches against those that were asked for."""
    if abs(delivered - asked) >= batch_size:  # less may be the short last one, where batches overtake each other
        raise SampleCountError(
            f"delivered {delivered} samples where {asked} were asked for: __getitems__ must return one "
            "sample for each index"
        )
