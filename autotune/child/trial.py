"""Times one configuration as a training run would feel it. Owns the loader, and decides when garbage is collected.

What is timed is exactly `for batch in loader: step(batch)`, epoch after epoch: starting the workers, filling
the queue, the steady pace, the drain at the end. Nothing is torn down until the result has been reported.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final

from autotune.child.batches import count_samples
from autotune.child.custom_loaders import MeasuredLoader
from autotune.child.device import limit_memory, make_step_timer, read_peak, reset_peak, synchronize
from autotune.child.distributed import Alone
from autotune.child.errors import annotate_dead_workers, find_requested_index
from autotune.child.loader import (
    StoppableDataLoader,
    build_loader,
    build_plain_loader,
    count_epoch_batches,
    count_epoch_samples,
    is_forking,
)
from autotune.child.sample_checks import check_epoch_length, check_fetched, check_handed_out
from autotune.child.step import Step
from autotune.child.stopping import UNLIMITED_BATCHES, StoppingRule
from autotune.child.timers import StepTimer
from autotune.child.workload import LoadedWorkload
from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.device_prefetch import DeviceCopier, prefetch_batches
from autotune.protocol.measurement import EpochTrace, Measurement
from autotune.protocol.messages import TrialRequest
from autotune.system.processes import PROC, list_mapped_segments, remove_shm_segments

if TYPE_CHECKING:
    import torch

WARM_UP_STEPS: Final = 3
DEVICE_WARM_UP_STEPS: Final = 6  # libraries load, kernels are chosen, compiled code records its graphs
PEAK_INTERVAL_SECONDS: Final = 0.1  # asking for the allocator's peak takes a tenth of a millisecond


class EpochRecorder:
    """Notes the times of one epoch; `delivered` samples are those that arrived, where they are counted."""

    def __init__(self, loader: MeasuredLoader, timer: StepTimer, *, is_map: bool, is_counted: bool) -> None:
        self._loader = loader
        self._timer = timer
        self._is_map = is_map  # then the sampler counts the samples
        self._is_counted = is_counted
        self._started = time.perf_counter()
        self.batches = 0
        self.delivered = 0
        self._closed_after: int | None = None

    def note_batch(self, batch: Any) -> None:
        """Record that a batch has been given to the step."""
        self.batches += 1
        if self._is_counted:
            self.delivered += count_samples(batch, self._loader.batch_size or 1)

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is handed out, or soon will not be."""
        return self._closed_after is not None or self._loader.index_source.closed

    def close(self, epoch_batches: int | None) -> None:
        """Have the epoch end soon, and record where it was told to."""
        self._closed_after = self.batches
        self._loader.close(epoch_batches)

    def count_samples(self) -> int:
        """Count the samples up to and with the batch under way."""
        if self._is_map:
            return self._loader.index_source.count_samples(self.batches + 1)
        return self.delivered + (self._loader.batch_size or 1)

    def snapshot(self) -> EpochTrace:
        """Give the epoch as far as the device is through with it, as if it were closed now."""
        moments, waited = self._timer.read()
        return self._trace(moments, waited, moments[-1] if moments else 0.0, len(moments))

    def finish(self) -> EpochTrace:
        """Give the epoch, now that the loader says it is over or that it was left, and the device is through."""
        ended = time.perf_counter() - self._started
        moments, waited = self._timer.read()
        closed = self._closed_after
        if closed is None and self._loader.index_source.closed:
            closed = len(moments)  # it closed by itself, at a mini-epoch's length
        return self._trace(moments, waited, max([ended, *moments[-1:]]), closed)

    def _trace(
        self, moments: Sequence[float], waited: float, end_seconds: float, closed_after: int | None
    ) -> EpochTrace:
        source = self._loader.index_source
        return EpochTrace(
            batch_seconds=tuple(round(moment, 6) for moment in moments),
            end_seconds=end_seconds,
            wait_seconds=waited,
            batch_waits=tuple(round(wait, 6) for wait in self._timer.waits[: len(moments)]),
            samples=source.count_samples(len(moments)) if self._is_map else self.delivered,
            promised_batches=source.batches if self._is_map else None,
            closed_after=closed_after,
        )


def warm_up_step(workload: LoadedWorkload, step: Step, device: torch.device, config: LoaderConfig) -> None:
    """Run the step a few times before anything is timed: its first calls import, allocate and compile.

    The batch comes from one worker where the configuration has workers, so that this process meets the dataset's
    code no earlier than a training process would.
    """
    settings = config.dataloader
    process = ProcessSettings(multiprocessing_context=config.process.multiprocessing_context)
    loader = build_plain_loader(workload, settings.batch_size, min(1, settings.num_workers), 1, process)
    loader.index_source.open(max_batches=1)
    steps = WARM_UP_STEPS if device.type == "cpu" else DEVICE_WARM_UP_STEPS
    for batch in itertools.islice(loader, 1):
        for _ in range(steps):
            step(batch)
    synchronize(device)


def settle_garbage() -> None:
    """Leave no full collection due: forked workers inherit when the next one is, and each would copy what it touches.

    Whether one is due depends on all that a process has imported, dltune's own modules included, and nobody can know it
    of the training process. Usually none is. Seen with seven workers: 65 MB and 0.2 s of CPU time each, 7% of a run of
    ten short epochs.
    """
    gc.collect()


def announce_epoch(loader: MeasuredLoader, number: int) -> None:
    """Tell a loader, and its sampler, which epoch begins, as training code does where they want to know."""
    for part in (loader, getattr(loader, "sampler", None)):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(number)  # type: ignore[union-attr]  # it was asked for a moment ago


def list_workers(iterator: Iterator[Any] | None) -> list[BaseProcess]:
    """List the processes that work for torch's iterator; another library may call anything by that name."""
    workers = getattr(iterator, "_workers", None)
    return [one for one in workers if isinstance(one, BaseProcess)] if isinstance(workers, list) else []


class TrialRun:
    """One trial under way: its loader, its stopping rule, its traces.

    `on_batch` is called with the batches so far; `ranks` keeps step with the other training processes, if any.
    """

    def __init__(
        self,
        workload: LoadedWorkload,
        step: Step,
        device: torch.device,
        request: TrialRequest,
        on_batch: Callable[[int], None],
        ranks: Alone | None = None,
    ) -> None:
        self._step = step
        self._ranks = ranks or Alone()
        self._device = device
        self._on_batch = on_batch
        self._workload = workload
        self._loader = build_loader(workload, request.config)
        self._is_map = workload.kind == "map" and self._loader.delivers_as_sampled  # then the sampler counts
        self._is_counted = not self._is_map or workload.fetches_batches  # afterwards, as they arrive
        self._workers = request.config.dataloader.num_workers
        self._start_seconds = None if self._workers and not is_forking(request.config.process) else 0.0
        self._epoch_batches = count_epoch_batches(self._loader, workload)
        self._epoch_samples = count_epoch_samples(self._loader, workload) or None
        self._stopping = StoppingRule(request, self._epoch_batches)
        self._max_gpu_bytes = request.gpu_bytes
        self._copier = DeviceCopier(device) if request.config.process.device_prefetch else None
        self._peaks: list[int] = []
        self._traces: list[EpochTrace] = []
        self._batches = 0
        self._leave_after: int | None = None
        self._recorder: EpochRecorder | None = None
        self._iterator: Iterator[Any] | None = None
        self._batch: Any = None
        self._worker_pids: set[int] = set()

    def count_samples(self) -> int:
        """Count the samples gone through so far, those of the batch under way included."""
        under_way = 0 if self._recorder is None else self._recorder.count_samples()
        return sum(trace.samples for trace in self._traces) + under_way

    def find_index(self, error: BaseException) -> int | None:
        """Find the index of the sample that could not be loaded in this process; None where the error does not tell."""
        index = find_requested_index(error)
        return index if index is not None and self._loader.index_source.was_last(index) else None

    def run(self) -> Measurement:
        """Measure until the stopping rule has seen enough; the workers live on until this object is dropped."""
        limit_memory(self._device, self._max_gpu_bytes)
        reset_peak(self._device)
        settle_garbage()
        self._ranks.start()
        self._started = time.perf_counter()
        plan: int | str = UNLIMITED_BATCHES
        while isinstance(plan, int):
            try:
                trace = self._run_epoch(plan)
            except Exception as error:
                annotate_dead_workers(error, list_workers(self._iterator))
                raise
            self._traces.append(trace)
            self._recorder = None
            self._learn_length(trace)
            plan = self._ranks.agree(lambda: self._stopping.next_epoch_batches(self._traces, self._read_clock()))
        return Measurement(
            epochs=tuple(self._traces),
            epoch_batches=self._epoch_batches,
            epoch_samples=self._epoch_samples,
            stopped=plan,
            peak_gpu_bytes=read_peak(self._device),
            gpu_growth_bytes=self._peaks[-1] - self._peaks[len(self._peaks) // 2] if self._peaks else 0,
            ranks=self._ranks.read_waits(),
        )

    def end_workers(self) -> None:
        """Let go of the workers that the loader keeps, which end now, by the order that their queues bring them.

        An iterator that knows its loader, as litdata's does, is part of a cycle. Left to the garbage collector, the
        queues would be closed before it, and each worker be waited for in vain, 5 s. Batches that nobody fetched stay
        in /dev/shm for as long as this process lives, where they have names: a later trial would count them as its own.
        """
        self._iterator = self._batch = None
        if isinstance(self._loader, StoppableDataLoader):
            self._loader._iterator = None
        ended = [pid for pid in self._worker_pids if not (PROC / str(pid)).exists()]
        remove_shm_segments(ended, spared=list_mapped_segments())

    def _read_clock(self) -> float:
        """Read the seconds of the trial; they begin when all workers are there, where starting them takes seconds."""
        elapsed = time.perf_counter() - self._started
        under_way = 0 if self._recorder is None else self._recorder.batches
        if self._start_seconds is None and (self._traces or under_way >= self._workers):
            self._start_seconds = elapsed
        return 0.0 if self._start_seconds is None else elapsed - self._start_seconds

    def _run_epoch(self, max_batches: int) -> EpochTrace:
        announce_epoch(self._loader, self._ranks.start_epoch())
        limit = None if max_batches == UNLIMITED_BATCHES else max_batches
        if not self._loader.ends_with_sampler:  # what was left is taken down before the next epoch's clock starts
            self._iterator = self._batch = None
        self._leave_after = None if self._loader.ends_with_sampler else limit
        self._loader.open(limit, self._count_last_batch_samples())
        timer = make_step_timer(self._device)
        recorder = EpochRecorder(self._loader, timer, is_map=self._is_map, is_counted=self._is_counted)
        self._recorder = recorder
        abandoned = False
        self._iterator = iter(self._loader)  # kept: letting go of it would take the workers down
        self._worker_pids.update(worker.pid or 0 for worker in list_workers(self._iterator))
        batches = self._iterator if self._copier is None else prefetch_batches(self._iterator, self._copier)
        timer.ask()
        self._ranks.ask()
        for self._batch in batches:  # as training loops go: a batch lives until the next one is there
            self._ranks.arrive()
            timer.begin()
            self._step(self._batch)
            is_whole = self._ranks.exchange()
            timer.end()
            recorder.note_batch(self._batch)
            if abandoned := self._attend(recorder, self._read_clock()) or not is_whole:
                break
            timer.ask()
            self._ranks.ask()
        else:
            self._ranks.exchange(has_batch=False)
        if not self._loader.ends_with_sampler and not abandoned:  # as a training loop lets go of it at its end
            self._iterator = batches = iter(())
        synchronize(self._device)
        trace = recorder.finish()
        trace = trace.model_copy(update={"wait_seconds": self._ranks.read_epoch_wait(trace.wait_seconds)})
        self._check(trace, recorder.delivered, abandoned=abandoned)
        return trace

    def _attend(self, recorder: EpochRecorder, elapsed: float) -> bool:
        """Report progress and look at the clock; tell whether to leave the epoch where it is."""
        self._batches += 1
        self._on_batch(self._batches)
        if self._device.type == "cuda" and elapsed >= len(self._peaks) * PEAK_INTERVAL_SECONDS:
            self._peaks.append(read_peak(self._device))
        if recorder.is_closing:
            batches = recorder.batches + self._ranks.decision_lag
            return self._ranks.decide("abandon", lambda: self._stopping.should_abandon(batches, elapsed))
        is_over = recorder.batches == self._leave_after
        if not is_over and not self._ranks.decide("stop", lambda: self._should_stop(recorder, elapsed)):
            return False
        recorder.close(self._epoch_batches)
        return not self._loader.ends_with_sampler

    def _should_stop(self, recorder: EpochRecorder, elapsed: float) -> bool:
        return self._stopping.should_stop_epoch(
            recorder.batches, recorder.snapshot, is_first=not self._traces, elapsed=elapsed
        )

    def _count_last_batch_samples(self) -> int | None:
        """Count the samples of the last batch of a whole epoch; None where it is full, or only the data knows."""
        if not self._is_map or not self._epoch_samples or self._workload.batching == "user":
            return None
        return self._epoch_samples % (self._loader.batch_size or 1) or None

    def _check(self, trace: EpochTrace, delivered: int, *, abandoned: bool) -> None:
        """Hold what an epoch delivered against what it should have."""
        is_whole = trace.closed_after is None
        if not abandoned:
            check_handed_out(trace.batches, trace.promised_batches)
            if is_whole:
                earlier = [before.batches for before in self._traces if before.closed_after is None]
                check_epoch_length(trace.batches, earlier, len(self._traces) + 1)
        if not self._is_counted or self._workload.is_opaque:
            return
        batch_size = self._loader.batch_size or 1
        if self._is_map:
            check_fetched(delivered, trace.samples, batch_size)
        elif self._workload.kind == "map":
            return
        elif self._workers > 1:
            dropped = self._workers * batch_size if self._loader.drop_last else 0
            self._workload.sample_counts.check_shares(delivered, dropped=dropped, is_whole=is_whole and not abandoned)
        elif is_whole and not abandoned:
            self._workload.sample_counts.samples = delivered

    def _learn_length(self, trace: EpochTrace) -> None:
        """A whole epoch tells its real length, which an iterable dataset or a sampler may have stated wrongly."""
        if trace.closed_after is None:
            self._epoch_batches = self._stopping.epoch_batches = trace.batches
            self._epoch_samples = trace.samples or None
        elif self._epoch_batches is not None and trace.batches > self._epoch_batches:
            self._epoch_batches = self._stopping.epoch_batches = self._epoch_samples = None
