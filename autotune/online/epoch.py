"""One epoch of a DataLoader whose workers may change while it runs; the batches stay those of its sampler, in order.

The user's batch sampler is drawn once. Each batch of indices becomes a slot of one queue. Worker groups fill slots: a
group is an ordinary iterator of a DataLoader whose batch sampler takes slots from the epoch. The epoch delivers slots
in the order of the queue. This is exact because a group takes slots in rising order, as torch delivers them, and
because every slot is taken before it is at the head of the queue.

Added workers never end the training. If they raise, die or hang, a group of the user's own settings loads their
batches. If they cannot be started, the groups that run load all batches.
"""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.online.dataset_objects import read_globals
from autotune.online.group import (
    HANG_SECONDS,
    ITERATORS,
    GroupLoader,
    Slot,
    WorkerGroup,
    WorkerSettings,
    defer_signals,
    end_soon,
    find_start_method,
    start_quietly,
    wait_for_ending_workers,
)
from autotune.online.limits import WorkerLimits
from autotune.online.worker import TimedIndices, WorkerCounters, describe_error, start_worker
from autotune.system.software import is_stdlib, read_start_method_in_force

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

INSPECTED_BATCHES: Final = 3  # at the start of an epoch
MAX_LEAD: Final = 200  # batches that other workers load while added ones start
LOADING_FOLDERS: Final = str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parent) + os.sep
FILES_INTERVAL: Final = 16  # batches, after which the limit of open files is checked
POLL_SECONDS: Final = 1.0  # after which a dead worker is noticed


class Epoch:
    """The slots of one epoch, and the groups that fill them.

    Args:
        loader: The user's loader.
        settings: The settings at the start.
        own: The user's settings.
        counters: Counters for the batches of workers.
        limits: Limits of added workers.
        kept: Persistent workers of the epoch before.
        seeds: Seeds of workers, if the loader's workers are persistent and this is not its first epoch.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        settings: WorkerSettings,
        own: WorkerSettings,
        counters: WorkerCounters,
        limits: WorkerLimits,
        kept: Sequence[WorkerGroup] = (),
        seeds: torch.Generator | None = None,
    ) -> None:
        self.loader, self._own, self._counters, self._limits = loader, own, counters, limits
        self.settings = settings  # of the workers that load now, or will at the first batch
        self.groups = list[WorkerGroup]()
        self.queue = deque[Slot]()  # those without a group are free: any group may take them
        self.drawn = self.started_workers = self.delivered = 0  # batches, workers, batches
        self.wait_seconds, self.returned_at, self.returned_cpu_seconds = 0.0, time.perf_counter(), time.process_time()
        self.started_at = self.first_at = self.returned_at  # and when the first batch was delivered
        self.first_wait_seconds = 0.0  # until then
        self.kept: list[WorkerGroup] = []  # persistent workers after the end
        self.is_whole = False  # its sampler has ended, and all batches are delivered
        self.failure = ""  # of added workers
        self._last_free = -1  # the last slot that may be free
        self._is_too_late = False  # to start workers in this epoch
        self._source_end: Exception | type[Exception] = StopIteration  # or an error of the sampler
        self._source = iter(loader._index_sampler)
        if seeds is None:  # as DataLoader does: with workers, it iterates twice, and draws their seed between
            seeds = torch.Generator()  # a copy: the first group has the seeds of the plain loader's workers
            seeds.set_state(torch.get_rng_state() if loader.generator is None else loader.generator.get_state())
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            if own.workers:
                self._source = iter(loader._index_sampler)
        self.seeds = seeds
        self._first: WorkerSettings | None = None if kept else settings  # of a group that is not started yet
        if not kept:
            if own.workers:  # else the plain loader draws nothing from its sampler before the first batch
                self._start_first()
                if not self.settings.workers:
                    with suppress(StopIteration):
                        self._last_free = self._draw(is_ahead=True).number
            return
        self.settings = _sum_up(kept)
        self.started_workers = max(one.first_worker + one.started for one in kept)
        shares = [((at + 1) / one.settings.batches, one) for one in kept for at in range(one.settings.batches)]
        with suppress(StopIteration):  # the epoch has fewer
            for _, group in sorted(shares, key=lambda one: one[0]):
                group.plan(self._draw(is_ahead=True))
        self.groups.extend(kept)
        for group in sorted(kept, key=lambda one: not one.is_own):
            try:
                group.restart(self._take)
            except Exception as error:
                if group.is_own:
                    raise
                self.fall_back(describe_error(error))
                break

    def _start_first(self) -> None:
        if self._first is not None:
            settings, self._first = self._first, None
            if settings.workers and settings != self._own:
                self.failure = self._explain()
            self.settings = self._own if self.failure else settings
            self._add(self.settings, [])

    @defer_signals()
    def _explain(self) -> str:
        try:
            return self._limits.shared.explain(self.loader, self.delivered)
        except Exception as error:  # of the user's classes; another thread may change the dataset
            return f"the dataset cannot be looked at ({describe_error(error)})"

    def change(self, settings: WorkerSettings) -> bool:
        """Change the workers at a boundary between batches; those that are not needed end, or are idle in their group.

        Returns:
            True if the change is made as far as the limits allow, or cannot be made (`self.failure`); `self.settings`
            are then those of the workers that load. False while an earlier change is under way, and if this one has to
            wait for the next epoch.
        """
        before, kept, most = self._list_open(), list[WorkerGroup](), settings.workers
        if not before or not self._can_change:
            return False
        started = sum(one.started for one in before)
        is_prefetch_higher = any(one.settings.prefetch < settings.prefetch for one in before)
        if settings != self._own and (started < most or is_prefetch_higher):
            most = min(most, self._limits.most_workers(settings.prefetch, 0 if is_prefetch_higher else started))
            self.failure = self.failure or self._explain()
            if self.failure or (most < settings.workers and most <= _count(before)):
                self.settings = _sum_up(before)
                return True
        lead = 0
        if most and all(one.settings.workers for one in before) and any(one.pending for one in before):
            rate = self.delivered / max(1e-9, self.returned_at - self.started_at)
            lead = min(MAX_LEAD, math.ceil(self._counters.start_seconds * rate))
        for group in before:
            used = min(group.started, most - _count(kept))
            if used:
                group.change(WorkerSettings(used, settings.prefetch))
            if used or not (group.started or most):
                kept.append(group)
        missing = WorkerSettings(most - _count(kept), settings.prefetch)
        is_possible = (kept and not missing.workers) or self._add(missing, kept, lead)
        if self._is_too_late:
            return False
        if not is_possible:
            self.settings = _sum_up(self._list_open())
            return True
        for group in before:
            if group not in kept:
                self._close(group)
        self.settings = WorkerSettings(most, settings.prefetch)
        return True

    def next_batch(self) -> Any:
        """Return the next batch in the sampler's order; raise StopIteration at the end, or an error of the dataset."""
        began = time.perf_counter()
        self._start_first()
        waited = 0.0  # by timeouts: a clock goes on while all processes are stopped
        while True:
            group = self.queue[0].group if self.queue else None
            group = group or next((one for one in self._list_open() if not one.settings.workers), None)
            if group is None:
                break
            returned, is_here = group.returned, not group.settings.workers
            if is_here:
                self._limits.shared.begin_load(self.loader)
            try:
                batch = group.load()
            except StopIteration:  # of the sampler, if batches are loaded one by one in this process
                break
            except BaseException as error:
                if group.is_own or not _is_of_workers(error):
                    if group.returned != returned:
                        self._finish_head(group, began)
                    raise
                patience = self.loader.timeout or HANG_SECONDS
                if not (reason := describe_error(error)).startswith("RuntimeError: DataLoader timed out"):
                    self.fall_back(reason)
                    continue
                waited += group.iterator._timeout
                if waited >= patience:
                    self.fall_back(f"they returned no batch for {patience:g} s")
                continue
            if is_here:
                self._limits.shared.end_load(self.loader, batch)
            self._finish_head(group, began)
            if self.delivered <= INSPECTED_BATCHES:
                self._limits.measure_batch(batch)
            is_due = self.delivered % FILES_INTERVAL == 0 and not (is_here or self._own.workers)
            if is_due and (reason := self._limits.explain_open_files()):
                self.fall_back(reason)
            return batch
        end, self._source_end, self.is_whole = self._source_end, StopIteration, True
        self.note_return(began)
        raise end

    @defer_signals()
    def fall_back(self, reason: str) -> None:
        """End added workers, which have failed, and have a group of the user's own settings load their batches."""
        self.failure, self._first = self.failure or f"added workers failed ({reason})", None
        self.settings = self._own
        replacement = WorkerGroup(self._own, self._take, is_own=True)
        for slot in self.queue:
            if slot.group is None or not slot.group.is_own:
                replacement.plan(slot)
        added = [one for one in self.groups if not one.is_own]
        end_soon([one.iterator for one in added if hasattr(one.iterator, "_workers")])
        for group in added:
            group.pending = 0
        for group in list(self.groups):
            self._close(group)
        wait_for_ending_workers()
        self._start(replacement)

    def end(self) -> None:
        """End all workers; those of open groups stay if the user's are persistent."""
        lasting = [one for one in self._list_open() if self.loader.persistent_workers and one.settings.workers]
        self.kept = [one for one in lasting if one.is_own or not self.failure]
        for group in self.groups:
            if group in self.kept:
                group.rest()
            else:
                group.end()
        self.groups.clear()
        self.queue.clear()

    @property
    def _can_change(self) -> bool:
        return not self._is_too_late and all(slot.group is not None for slot in self.queue)

    def _list_open(self) -> list[WorkerGroup]:
        return [one for one in self.groups if one.is_open]

    def _finish_head(self, group: WorkerGroup, began: float) -> None:
        self.queue.popleft()
        group.pending -= 1
        self.delivered += 1
        if not group.is_open:
            self._close(group)
        self.note_return(began)
        if self.delivered == 1:
            self.first_at, self.first_wait_seconds = self.returned_at, self.wait_seconds

    def note_return(self, began: float) -> None:
        """Note that the training, which began to wait then, gets a batch, the iterator or the end of the epoch."""
        self.returned_at, self.returned_cpu_seconds = time.perf_counter(), time.process_time()
        self.wait_seconds += self.returned_at - began

    def _close(self, group: WorkerGroup) -> None:
        """Have a group take no slots but those of a lead; it ends when it has returned those that it has."""
        group.is_open = False
        if not group.pending:
            self.groups.remove(group)
            group.end()

    def _draw(self, *, is_ahead: bool) -> Slot:
        """Draw a slot. Ahead of its use, its indices are pickled, as the sampler may change them later."""
        if self._source_end is not StopIteration:
            raise StopIteration
        try:
            slot = Slot(self.drawn, next(self._source))
        except StopIteration:
            raise
        except Exception as error:
            self._source_end = error
            raise StopIteration from None
        self.drawn += 1
        self.queue.append(slot)
        if is_ahead:
            slot.indices = TimedIndices(slot.indices)
        else:
            self._limits.shared.end_sampling()
        return slot

    def _take(self, group: WorkerGroup) -> Slot:
        """Return the next slot of a group: never one before those that it has, as it delivers in the order it takes."""
        if group.last < self._last_free:
            for slot in self.queue:
                if slot.group is None and slot.number > group.last:
                    return slot
        if not group.is_open:
            raise StopIteration
        return self._draw(is_ahead=group.settings.workers > 0)

    @defer_signals()
    def _add(self, settings: WorkerSettings, others: list[WorkerGroup], lead: int = 0) -> bool:
        """Start a group; return whether that was possible.

        All present groups load the next slots, the lead, while its workers start. Then its first slots are spread
        evenly among those that the others take meanwhile. If the epoch ends before them, it is too late: the next
        epoch starts the group, or all workers if epochs are too short for the lead.
        """
        group = WorkerGroup(settings, self._take, is_own=settings == self._own and not others)
        share = settings.batches
        whole = share + sum(one.pending for one in others) if share else 0
        self._last_free = self.drawn + lead + whole - 1
        try:
            with suppress(StopIteration):  # the epoch has fewer
                for at in range(-lead, whole):
                    slot = self._draw(is_ahead=True)
                    if at >= 0 and (at + 1) * share // whole > at * share // whole:
                        group.plan(slot)
            if group.planned or not share or not self.groups:
                self._start(group)
            elif self.drawn > lead + 2 * whole:
                self._is_too_late = True
            else:
                others.clear()
        except Exception as error:
            if group.is_own and not self.groups:
                raise
            self.failure = self.failure or f"added workers failed ({describe_error(error)})"
            for slot in self.queue:
                slot.group = None if slot.group is group else slot.group
            if not self.groups:
                self.fall_back(self.failure)
            return False
        return True

    def _start(self, group: WorkerGroup) -> None:
        if not group.settings.workers:
            self._limits.shared.note(self.loader)
        with start_quietly(is_own=group.is_own) as collects_garbage:
            group.loader = self._make_loader(group, collects_garbage=collects_garbage)
            group.iterator = iter(group.loader)
            if group.settings.workers:
                group.iterator._persistent_workers = True  # so that the end of the epoch does not wait for theirs
                ITERATORS.add(group.iterator)
            self.groups.append(group)
            self.started_workers += group.settings.workers
            self._counters.workers = max(self._counters.workers, self.started_workers)

    def _make_loader(self, group: WorkerGroup, *, collects_garbage: bool) -> DataLoader[Any]:
        given, (workers, prefetch) = self.loader, group.settings
        is_batched = given._auto_collation
        sampler: dict[str, Any] = {"batch_sampler": group} if is_batched else {"sampler": group, "batch_size": None}
        others: dict[str, Any] = {}
        if workers:
            group.first_worker = 0 if group.is_own else self.started_workers
            parent = os.getpid() if find_start_method(given) == "fork" else 0
            is_compared = not (parent or self._own.workers)  # the user's own workers may differ as well
            expected = read_globals(given.dataset) if is_compared else {}
            begun = parent, group.first_worker, time.perf_counter(), expected
            start = partial(start_worker, given.worker_init_fn, collects_garbage, *begun)
            others = {"prefetch_factor": prefetch, "worker_init_fn": start}
            method: Any = given.multiprocessing_context
            if method is None and not group.is_own:
                method = read_start_method_in_force()  # torch would fix it for the script, which may choose one later
            timeout = given.timeout if group.is_own else min(given.timeout or POLL_SECONDS, POLL_SECONDS)
            others |= {"timeout": timeout, "multiprocessing_context": method}
        return GroupLoader(
            given.dataset,
            num_workers=workers,
            collate_fn=partial(self._counters.collate, given.collate_fn),
            pin_memory=given.pin_memory,
            generator=self.seeds,
            persistent_workers=workers > 0 and given.persistent_workers,
            **sampler,
            **others,
        )


def _count(groups: Sequence[WorkerGroup]) -> int:
    return sum(one.settings.workers for one in groups)


def _sum_up(groups: Sequence[WorkerGroup]) -> WorkerSettings:
    return WorkerSettings(_count(groups), groups[0].settings.prefetch)


def _is_of_workers(error: BaseException) -> bool:
    """Return whether workers caused an error; that of a signal handler of the script ends in its own code."""
    calls = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = [one for one in calls if is_stdlib(one.co_filename) or one.co_filename.startswith(LOADING_FOLDERS)][-1]
    is_unpickling = last.co_filename.endswith("queues.py") and last.co_name == "get"  # a class of the user's failed
    return isinstance(error, Exception) and (last is calls[-1] or is_unpickling)


class EpochIterator:
    """The iterator that the training loop holds; the workers end when the loop lets go of it, also in its middle.

    Args:
        epoch: The epoch to iterate over.
        before_batch: Is called with the epoch before each batch, and may change its workers.
        after_end: Is called with the epoch after its end.
    """

    def __init__(
        self, epoch: Epoch, before_batch: Callable[[Epoch], object], after_end: Callable[[Epoch], object]
    ) -> None:
        self._before_batch, self._after_end = before_batch, after_end
        self.begin(epoch)

    def begin(self, epoch: Epoch) -> None:
        """Iterate over an epoch from now on, as torch's iterator does again if its workers are persistent."""
        self._epoch, self._sampler, self._has_ended = epoch, epoch.loader._index_sampler, False

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._sampler)  # as of torch's iterator

    def __next__(self) -> Any:
        if self._has_ended:
            raise StopIteration
        self._before_batch(self._epoch)
        try:
            return self._epoch.next_batch()
        except StopIteration:
            self.end()
            raise

    @property
    def is_needed(self) -> bool:
        """Whether the training may take further batches; some loops take `len(loader)` of them and see no end."""
        if self._has_ended:
            return False
        with suppress(Exception):  # of the user's sampler or dataset
            return bool(self._epoch.queue) or self._epoch.delivered < len(self._epoch.loader)
        return True

    def leave(self) -> None:
        """Count the epoch as over, as another one follows; without workers, its sampler may still have batches."""
        if any(one.started for one in self._epoch.groups):
            self.end()
        elif not self._has_ended:
            self._epoch.is_whole = True
            self._after_end(self._epoch)  # again at its end, where it changes nothing

    def end(self) -> None:
        """End the workers, or keep those of persistent ones, and take no further batches."""
        if not self._has_ended:
            self._epoch.is_whole |= not self.is_needed
            self._has_ended = True
            self._epoch.end()
            self._after_end(self._epoch)
            del self._epoch.loader  # the training may make an equal one while it holds this iterator

    _shutdown_workers = end  # as of torch's iterator

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # at exit, multiprocessing ends the workers
            self.end()
