"""Runs a trial: times `for batch in loader: step(batch)` as in training, epoch after epoch.

The start of the workers and the drain of the queue count, and the end of workers that do not persist.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final

from autotune.child.device import DEVICE_WARM_UP_STEPS, StepTimer, make_step_timer, read_peak, reset_peak, synchronize
from autotune.child.distributed import RankSync
from autotune.child.errors import annotate_dead_workers
from autotune.child.loader import (
    MeasuredLoader,
    StoppableDataLoader,
    build_loader,
    build_plain_loader,
    count_epoch_samples,
    count_last_samples,
    is_forking,
    read_length,
)
from autotune.child.sample_counts import check_batches, count_samples
from autotune.child.step import Step
from autotune.child.stopping_rule import UNLIMITED_BATCHES, StoppingRule
from autotune.child.workload import LoadedWorkload, read_attribute
from autotune.config import LoaderConfig
from autotune.profiles.device_prefetch import DeviceCopier, prefetch_batches
from autotune.protocol.measurement import EpochTrace, Measurement
from autotune.protocol.messages import TrialRequest
from autotune.system.procfs import list_names, list_used_segments

if TYPE_CHECKING:
    import torch

WARM_UP_STEPS: Final = 3
START_SHARE: Final = 0.5  # of the trial's time, which the first round takes at most, unless workers are spawned
MAX_FIRST_ROUND_SECONDS: Final = 15.0  # the same; above it, batches rather than starts take so long


class EpochRecorder:
    """Records the times of one epoch, and the samples `delivered`, which are counted if no sampler counts them.

    The first batch arrives `first_use_seconds` later in training, where nothing has read the dataset before.
    """

    def __init__(self, loader: MeasuredLoader, timer: StepTimer, first_use_seconds: float, *, is_map: bool) -> None:
        self._loader, self._timer, self._is_map = loader, timer, is_map
        self._first_use_seconds = first_use_seconds
        self._started = time.perf_counter()
        self.batches = self.delivered = 0
        self.closed_after: int | None = None

    def close(self, epoch_batches: int | None) -> None:
        """Stop the sampler soon, if the epoch ends with it."""
        self.closed_after = self.batches
        if self._loader.ends_with_sampler:
            self._loader.index_source.close(self._loader.num_workers, epoch_batches)

    def count_samples(self) -> int:
        """Return the number of samples up to the current batch."""
        counted = self.delivered + (self._loader.batch_size or 1)
        return self._loader.index_source.count_samples(self.batches + 1) if self._is_map else counted

    def make_trace(self, *, is_over: bool = False) -> EpochTrace:
        """Return the epoch after its end; before it as far as the device is, as if the sampler were closed now."""
        ended, source = time.perf_counter() - self._started, self._loader.index_source
        moments, wait_seconds = self._timer.read()
        late = self._first_use_seconds
        moments, waits = [late + moment for moment in moments], self._timer.waits[: len(moments)]
        closed_after = self.closed_after if is_over else None
        if closed_after is None and (not is_over or source.closed):  # a snapshot, or a mini-epoch
            closed_after = len(moments)
        return EpochTrace(
            batch_seconds=tuple(round(moment, 6) for moment in moments),
            end_seconds=max([late + ended if is_over else 0.0, *moments[-1:]]),
            wait_seconds=late + wait_seconds,
            batch_waits=tuple(round(wait + late * (not number), 6) for number, wait in enumerate(waits)),
            samples=source.count_samples(len(moments)) if self._is_map else self.delivered,
            closed_after=closed_after,
        )


def warm_up_step(
    workload: LoadedWorkload, step: Step, device: torch.device, config: LoaderConfig, on_phase: Callable[[str], None]
) -> float:
    """Run the step on a few batches, from a worker if this process must not read the dataset.

    On a device, the last batch is as short as that of an epoch, for whose shape kernels are chosen or compiled again.

    Returns the seconds that the first use of the dataset took in this process; workers pay it in the trial.
    """
    settings, steps, rest = config.dataloader, WARM_UP_STEPS, None
    loader = build_plain_loader(workload, settings.batch_size, min(1, settings.num_workers), prefetch_factor=1)
    if device.type != "cpu":
        rest = count_last_samples(count_epoch_samples(loader, workload), loader, workload)
        steps = DEVICE_WARM_UP_STEPS + (rest is not None)

    def start_epochs() -> Iterator[Iterable[Any]]:
        if not settings.num_workers:  # the first batch of another epoch shows what the first use takes
            loader.index_source.open(max_batches=1)
            yield itertools.islice(loader, 1)
        loader.index_source.open(steps if settings.num_workers else steps - 1, last_batch_samples=rest)
        yield from itertools.repeat(loader, 1 if settings.num_workers else steps)

    loads, started = [], time.perf_counter()
    for batch in itertools.islice(itertools.chain.from_iterable(start_epochs()), steps):
        loads.append(time.perf_counter() - started)
        on_phase("warming the step up")
        step(batch)
        started = time.perf_counter()
    synchronize(device)
    return max(0.0, loads[0] - loads[1]) if len(loads) > 1 and not settings.num_workers else 0.0


def list_workers(iterator: Iterator[Any] | None) -> list[BaseProcess]:
    """Return the worker processes of torch's iterator; another library may use the name for anything."""
    workers = getattr(iterator, "_workers", None)
    return [one for one in workers if isinstance(one, BaseProcess)] if isinstance(workers, list) else []


class TrialRun:
    """A trial; `on_batch` is called with the number of batches so far, `ranks` synchronizes training processes."""

    def __init__(
        self,
        workload: LoadedWorkload,
        step: Step,
        device: torch.device,
        request: TrialRequest,
        on_batch: Callable[[int], None],
        ranks: RankSync | None = None,
        first_use_seconds: float = 0.0,
    ) -> None:
        self._workload, self._step, self._device = workload, step, device
        self._ranks, self._on_batch, self._first_use_seconds = ranks or RankSync(), on_batch, first_use_seconds
        self._loader = build_loader(workload, request.config)
        self._is_map = workload.kind == "map" and self._loader.delivers_as_sampled  # then the sampler counts
        self._workers = request.config.dataloader.num_workers
        self._began = 0.0
        self._started: float | None = None  # where its seconds begin
        self._epoch_samples = count_epoch_samples(self._loader, workload) or None
        self._stopping = StoppingRule(request, read_length(self._loader))
        self._copier = DeviceCopier(device) if request.config.process.device_prefetch else None
        self._traces: list[EpochTrace] = []
        self._batches = 0
        self._recorder: EpochRecorder | None = None
        self._iterator: Iterator[Any] | None = None
        self._batch: Any = None
        self._worker_pids: set[int] = set()

    def count_samples(self) -> int:
        """Return the number of samples up to the current batch."""
        current = 0 if self._recorder is None else self._recorder.count_samples()
        return sum(one.samples for one in self._traces) + current

    def run(self) -> Measurement:
        """Measure until the stopping rule ends the trial; workers live until this object is dropped."""
        reset_peak(self._device)
        gc.collect()  # else a full collection may come due in every worker, and copy what it touches
        self._ranks.start()
        self._began = time.perf_counter()
        plan: int | str = UNLIMITED_BATCHES
        while isinstance(plan, int):
            try:
                trace = self._run_epoch(plan)
            except Exception as error:
                annotate_dead_workers(error, list_workers(self._iterator))
                raise
            self._traces.append(trace)
            self._recorder = None
            if trace.closed_after is None:  # its dataset or sampler may have reported another length
                self._stopping.epoch_batches, self._epoch_samples = trace.batches, trace.samples or None
            elif trace.batches > (self._stopping.epoch_batches or trace.batches):
                self._stopping.epoch_batches = self._epoch_samples = None
            plan = self._ranks.agree(lambda: self._stopping.next_epoch_batches(self._traces, self._elapsed()))
        return Measurement(
            epochs=tuple(self._traces),
            epoch_batches=self._stopping.epoch_batches,
            epoch_samples=self._epoch_samples,
            stopped=plan,
            peak_gpu_bytes=read_peak(self._device),
            ranks=self._ranks.read_waits(),
        )

    def end_workers(self) -> bool:
        """Stop persistent workers, and return whether batches that were not fetched remain in /dev/shm."""
        self._iterator = self._batch = None  # the garbage collector may close queues first, and torch wait 5 s for each
        if isinstance(self._loader, StoppableDataLoader):
            self._loader._iterator = None
        return bool(list_names(self._worker_pids) - list_used_segments())

    def _elapsed(self) -> float:
        """Return the seconds of the trial, in which the first batch of each worker counts little or nothing.

        A start may take longer than the trial: imports, an index that is read or shuffled. It counts in the epoch.
        """
        now, request = time.perf_counter(), self._stopping.request
        if self._started is None:
            are_spawned = self._workers and not is_forking(request.config.process.multiprocessing_context)
            first_round = now - self._began
            if first_round > MAX_FIRST_ROUND_SECONDS and not are_spawned:
                self._started = self._began
            elif self._traces or self._batches >= max(1, self._workers):
                self._started = now - (0.0 if are_spawned else min(first_round, START_SHARE * request.seconds))
        return 0.0 if self._started is None else now - self._started

    def _run_epoch(self, max_batches: int) -> EpochTrace:
        number = self._ranks.start_epoch()
        parts = [self._loader, *(getattr(self._loader, name, None) for name in ("sampler", "batch_sampler", "dataset"))]
        for part in {id(one): one for one in (*parts, getattr(parts[2], "sampler", None))}.values():
            if callable(set_epoch := read_attribute(part, "set_epoch")):  # as trainers do
                set_epoch(number)
        limit = None if max_batches == UNLIMITED_BATCHES else max_batches
        if self._loader.ends_with_sampler:
            rest = count_last_samples(self._epoch_samples, self._loader, self._workload)
            self._loader.index_source.open(limit, last_batch_samples=rest)
        else:  # stop an abandoned epoch's workers before the clock starts
            self._iterator = self._batch = None
        timer = make_step_timer(self._device)
        late = 0.0 if self._traces else self._first_use_seconds
        recorder = EpochRecorder(self._loader, timer, late, is_map=self._is_map)
        self._recorder = recorder
        abandoned = False
        self._iterator = iter(self._loader)  # dropping it would stop the workers
        self._worker_pids.update(worker.pid or 0 for worker in list_workers(self._iterator))
        batches = self._iterator if self._copier is None else prefetch_batches(self._iterator, self._copier)
        for self._batch in batches:  # as in training, a batch lives until the next one arrives
            timer.begin()
            samples = 0 if self._is_map else count_samples(self._batch, self._loader.batch_size)
            self._step(self._batch)  # which may change it
            is_whole = self._ranks.sync_step()
            timer.end()
            recorder.batches += 1
            recorder.delivered += samples
            if abandoned := self._on_batch_end(recorder, limit) or not is_whole:
                break
            timer.ask()
        else:
            self._ranks.sync_step(has_batch=False)
        if not self._loader.ends_with_sampler and not abandoned:  # as at the end of a training loop
            self._iterator = batches = iter(())
        synchronize(self._device)
        trace = recorder.make_trace(is_over=True)
        rank_wait_seconds = self._ranks.end_epoch(timer.waits)  # outside the measured time
        trace = trace.model_copy(update={"wait_seconds": max(trace.wait_seconds, rank_wait_seconds)})
        self._check(trace, recorder.delivered, abandoned=abandoned)
        return trace

    def _on_batch_end(self, recorder: EpochRecorder, limit: int | None) -> bool:
        """Report progress; return whether to abandon the epoch."""
        self._batches += 1
        self._on_batch(self._batches)
        elapsed = self._elapsed()
        if recorder.closed_after is not None or self._loader.index_source.closed:
            batches = recorder.batches + self._ranks.decision_lag
            return self._ranks.decide("abandon", lambda: self._stopping.should_abandon(batches, elapsed))

        def should_stop() -> bool:
            rule, is_first = self._stopping, not self._traces
            return rule.should_stop_epoch(recorder.batches, recorder.make_trace, is_first=is_first, elapsed=elapsed)

        is_over = recorder.batches == limit and not self._loader.ends_with_sampler
        if not is_over and not self._ranks.decide("stop", should_stop):
            return False
        recorder.close(self._stopping.epoch_batches)
        return not self._loader.ends_with_sampler

    def _check(self, trace: EpochTrace, delivered: int, *, abandoned: bool) -> None:
        is_whole = trace.closed_after is None and not abandoned
        if not abandoned:
            earlier = [before.batches for before in self._traces if before.closed_after is None]
            handed_out = self._loader.index_source.batches if self._is_map else None
            check_batches(trace.batches, handed_out, earlier if is_whole else None)
        counts = self._workload.sample_counts
        if self._workload.kind == "map" or self._workload.batches_are_external:
            return
        if self._workers > 1:
            dropped = self._workers * (self._loader.batch_size or 1) if self._loader.drop_last else 0
            counts.check_shares(delivered, dropped=dropped, is_whole=is_whole)
            if counts.samples is None and self._workload.parts.batched:  # no epoch was counted: its own length
                claimed = replace(counts, samples=self._workload.expected_samples, is_claimed=True)
                claimed.check_shares(delivered, dropped=dropped, is_whole=False)
        elif is_whole:
            counts.samples = delivered
