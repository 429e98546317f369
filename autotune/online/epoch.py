"""One epoch of a DataLoader whose workers may change while it runs; the batches stay those of its sampler, in order.

The user's batch sampler is drawn once. Each batch of indices becomes a slot of one queue. Worker groups fill slots: a
group is an ordinary iterator of a DataLoader whose batch sampler takes slots from the epoch. The epoch delivers slots
in the order of the queue. This is exact because a group takes slots in rising order, as torch delivers them, and
because every slot is taken before it is at the head of the queue.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import DataLoader

from autotune.online.worker import TimedCollate, TimedIndices, WorkerCounters, WorkerStart

INSPECTED_BATCHES: Final = 3  # at the start of an epoch
_ENDING: Final[list[object]] = []  # iterators whose workers end; a worker forked meanwhile must not collect its copy


class WorkerSettings(NamedTuple):
    """The settings that may change during an epoch."""

    workers: int
    prefetch: int

    @property
    def batches(self) -> int:
        """Batches that are under way at once."""
        return self.workers * self.prefetch


@dataclass(eq=False, slots=True)
class Slot:
    """One batch: its position in the epoch, its indices, and the group that loads it."""

    number: int
    indices: Any
    group: WorkerGroup | None = None


class WorkerGroup:
    """The workers of one DataLoader iterator, whose batch sampler is the group itself."""

    def __init__(self, settings: WorkerSettings, take: Callable[[WorkerGroup], Slot], *, is_own: bool) -> None:
        self.settings, self.is_own, self._take = settings, is_own, take  # own: the user's settings, whose errors count
        self._planned = deque[Slot]()
        self.pending, self.last, self.is_open = 0, -1, True  # batches under way; number of the last slot that it took
        self.loader: DataLoader[Any] | None = None
        self.iterator: Iterator[Any] | None = None
        self.restore_random: Callable[[], object] = bool  # without workers: to the states before the last batch

    def __iter__(self) -> WorkerGroup:
        return self

    def __next__(self) -> Any:
        slot = self._planned.popleft() if self._planned else self._take(self)
        self.last, slot.group = slot.number, self
        self.pending += 1
        if not self.settings.workers:
            self.restore_random = _keep_random_states()
        return TimedIndices(slot.indices) if self.settings.workers else slot.indices

    def restart(self, take: Callable[[WorkerGroup], Slot]) -> None:
        """Begin another epoch with the same workers; torch discards what they still load."""
        self._take, self.pending, self.last = take, 0, -1
        self._planned.clear()
        self.iterator = iter(self.loader)  # type: ignore[arg-type]  # its workers live

    def plan(self, slot: Slot) -> None:
        """Let the group take a slot before all others."""
        slot.group = self
        self._planned.append(slot)

    def end(self) -> None:
        """End the workers, in a thread: torch waits up to five seconds for each of them."""
        ending = [self.loader, self.iterator]
        self.is_open, self.loader, self.iterator = False, None, None
        if ending[1] is not None:
            _ENDING.append(ending)
            threading.Thread(target=_shut_down, args=(ending,), daemon=True).start()


def _shut_down(ending: list[Any]) -> None:
    if (shut_down := getattr(ending[1], "_shutdown_workers", None)) is not None:
        shut_down()  # letting go of it is not enough: the traceback of an error may hold it
    ending.clear()
    _ENDING.remove(ending)


class Epoch:
    """The slots of one epoch, and the groups that fill them."""

    def __init__(
        self,
        loader: DataLoader[Any],
        settings: WorkerSettings,
        own: WorkerSettings,
        counters: WorkerCounters,
        kept: WorkerGroup | None = None,
        inspect: Callable[[Any], object] = id,
    ) -> None:
        self._loader, self._own, self._counters, self._inspect = loader, own, counters, inspect
        self._groups = list[WorkerGroup]()
        self._queue, self._unassigned = deque[Slot](), deque[Slot]()
        self.drawn = self.started_workers = self.delivered = 0  # batches, workers, batches
        self.wait_seconds, self.returned_at = 0.0, time.perf_counter()
        self.kept: WorkerGroup | None = None  # persistent workers after the end
        self.failure = ""  # of added workers, whose batches the user's own settings load
        # As DataLoader does: the sampler is iterated twice if there are workers, with a draw of their seed between.
        sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._source = iter(sampler)
        if kept is not None:  # persistent workers continue with their seeds
            self.started_workers, self._seeds = kept.settings.workers, kept.loader.generator  # type: ignore[union-attr]
            self._groups.append(kept)
            kept.restart(self._take)
            return
        self._seeds = torch.Generator()  # a copy: the first group has the seeds of the plain loader's workers
        self._seeds.set_state(torch.get_rng_state() if loader.generator is None else loader.generator.get_state())
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        if own.workers:
            self._source = iter(sampler)
        self._add(settings)

    def change(self, settings: WorkerSettings) -> bool:
        """Change the workers at a boundary between batches, keeping those that may stay.

        Returns:
            False if an earlier change is still under way; then call it again after the next batch.
        """
        if self._unassigned or self.failure:
            return False
        missing = settings.workers
        for group in sorted(self._list_open(), key=lambda one: -one.settings.workers):
            fits = 0 < group.settings.workers <= missing and group.settings.prefetch == settings.prefetch
            group.is_open = fits
            missing -= group.settings.workers * fits
        if missing or not settings.workers:
            self._add(WorkerSettings(missing, settings.prefetch))
        for group in [one for one in self._groups if not one.is_open and not one.pending]:
            self._remove(group)
        return True

    def next_batch(self) -> Any:
        """Return the next batch in the sampler's order; raise StopIteration at the end, or an error of the dataset."""
        began = time.perf_counter()
        while True:
            inline = next((one for one in self._list_open() if not one.settings.workers), None)
            group = self._queue[0].group if self._queue else inline
            if group is None:
                raise StopIteration
            try:
                batch = next(group.iterator)  # type: ignore[arg-type]  # a group with slots has an iterator
                if inline is not None and self._own.workers:
                    inline.restore_random()
            except StopIteration:  # of the sampler, if batches are loaded one by one in this process
                raise
            except Exception as error:
                if group.is_own:
                    self._finish_head(group, began)
                    raise
                self._replace(group, error)
                continue
            self._finish_head(group, began)
            if self.delivered <= INSPECTED_BATCHES:
                self._inspect(batch)
            return batch

    def end(self) -> None:
        """End all workers; persistent ones stay if they are the only group."""
        is_kept = self._loader.persistent_workers and len(self._groups) == 1 and self._groups[0].settings.workers > 0
        self.kept = self._groups.pop() if is_kept and not self.failure else None
        while self._groups:
            self._groups.pop().end()
        self._queue.clear()
        self._unassigned.clear()

    def _list_open(self) -> list[WorkerGroup]:
        return [one for one in self._groups if one.is_open]

    def _finish_head(self, group: WorkerGroup, began: float) -> None:
        self._queue.popleft()
        group.pending -= 1
        self.delivered += 1
        if not group.is_open and not group.pending:
            self._remove(group)
        self.returned_at = time.perf_counter()
        self.wait_seconds += self.returned_at - began

    def _remove(self, group: WorkerGroup) -> None:
        self._groups.remove(group)
        group.end()

    def _draw(self) -> Slot:
        slot = Slot(self.drawn, next(self._source))
        self.drawn += 1
        self._queue.append(slot)
        return slot

    def _take(self, group: WorkerGroup) -> Slot:
        """Return the next slot of a group: never one before those that it has, as it delivers in the order it takes."""
        if not group.is_open:
            raise StopIteration
        for at, slot in enumerate(self._unassigned):
            if slot.number > group.last:
                del self._unassigned[at]
                return slot
        return self._draw()

    def _add(self, settings: WorkerSettings) -> None:
        """Start a group. Its first slots are spread evenly among those that the others take meanwhile."""
        group = WorkerGroup(settings, self._take, is_own=settings == self._own and not self._list_open())
        others = sum(one.pending for one in self._list_open()) if settings.workers else 0
        share, whole = settings.batches, settings.batches + others
        try:
            for at in range(whole):
                is_its = (at + 1) * share // whole > at * share // whole
                slot = self._draw()
                if is_its:
                    group.plan(slot)
                else:
                    self._unassigned.append(slot)
        except StopIteration:
            if not any(slot.group is group for slot in self._queue):
                return  # the epoch ends before a batch of the group
        self._start(group)

    def _start(self, group: WorkerGroup) -> None:
        """Start the workers of a group; if added ones cannot be started, the user's own settings load their batches."""
        self._groups.append(group)
        try:
            with _quiet_fork():
                group.loader = self._make_loader(group)
                group.iterator = iter(group.loader)
        except Exception as error:
            if group.is_own:
                raise
            self._replace(group, error)
            return
        self.started_workers += group.settings.workers
        if not group.is_own:
            _ignore_death(group.iterator)

    def _make_loader(self, group: WorkerGroup) -> DataLoader[Any]:
        given, (workers, prefetch) = self._loader, group.settings
        sampler: dict[str, Any] = {"batch_sampler": group}
        if given.batch_sampler is None:
            sampler = {"sampler": group, "batch_size": None}
        others: dict[str, Any] = {}
        if workers:
            first = 0 if group.is_own else self.started_workers
            start = WorkerStart(given.worker_init_fn, first)
            # Persistent, so that the end of the epoch does not wait for the workers to end.
            others = {"prefetch_factor": prefetch, "persistent_workers": True, "worker_init_fn": start}
            others |= {"timeout": given.timeout, "multiprocessing_context": given.multiprocessing_context}
        collate = TimedCollate(given.collate_fn, self._counters)
        return DataLoader(
            given.dataset,
            num_workers=workers,
            collate_fn=collate,
            pin_memory=given.pin_memory,
            generator=self._seeds,
            **sampler,
            **others,
        )

    def _replace(self, group: WorkerGroup, error: Exception) -> None:
        """Have a group of the user's own settings load the batches of one that failed, from the first one on."""
        self.failure = self.failure or f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        self._remove(group)
        replacement = WorkerGroup(self._own, self._take, is_own=True)
        for slot in self._queue:
            if slot.group in (group, None):
                replacement.plan(slot)
        self._unassigned.clear()
        self._start(replacement)


def _keep_random_states() -> Callable[[], object]:
    """Return a function that undoes what loading a batch draws here; in workers it draws from states of their own."""
    numpy = sys.modules.get("numpy.random")
    states = random.getstate(), torch.get_rng_state(), numpy and numpy.get_state()

    def restore() -> None:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy:
            numpy.set_state(states[2])

    return restore


def _ignore_death(iterator: Any) -> None:
    """Have torch not raise an error wherever the training is when one of these workers dies; `next` still raises it."""
    remove = getattr(torch._C, "_remove_worker_pids", None)
    if remove is not None and getattr(iterator, "_worker_pids_set", False):
        remove(id(iterator))
        iterator._worker_pids_set = False


@contextmanager
def _quiet_fork() -> Iterator[None]:
    """Start workers without torch's warning of more workers than CPUs, and without what a fork would collect.

    A forked worker that collects its copy of one of our iterators would end our workers.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()


class EpochIterator:
    """The iterator that the training loop holds; the workers end when the loop lets go of it, also in its middle.

    Args:
        epoch: The epoch to iterate over.
        before_batch: Is called with the epoch before each batch, and may change its workers.
        after_end: Is called with the epoch and whether it was iterated to its end.
    """

    def __init__(
        self, epoch: Epoch, before_batch: Callable[[Epoch], object], after_end: Callable[[Epoch, bool], object]
    ) -> None:
        self._epoch, self._before_batch, self._after_end = epoch, before_batch, after_end
        self._has_ended = False

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        self._before_batch(self._epoch)
        try:
            return self._epoch.next_batch()
        except StopIteration:
            self._end(is_whole=True)
            raise

    def __del__(self) -> None:
        self._end(is_whole=False)

    def _end(self, *, is_whole: bool) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._epoch.end()
            self._after_end(self._epoch, is_whole)
