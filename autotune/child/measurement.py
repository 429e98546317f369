"""Times one configuration as a training run would feel it. Runs in the child; owns the clock and the loader.

What is timed is exactly `for batch in loader: step(batch)`, epoch after epoch: starting the workers, filling
the queue, the steady pace, the drain at the end. Nothing is torn down until the result has been reported.
"""

from __future__ import annotations

import gc
import itertools
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final

from autotune.child.device import limit_memory, make_clock, read_peak, reset_peak, synchronize
from autotune.child.step_timer import StepTimer
from autotune.child.stopping import UNLIMITED_BATCHES, StoppingRule
from autotune.child.training_step import Step
from autotune.child.workload_loading import (
    LoadedWorkload,
    StoppableDataLoader,
    build_loader,
    count_batches,
    count_epoch_samples,
)
from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.profiles.batches import count_samples
from autotune.profiles.device_prefetch import make_copier, prefetch_batches
from autotune.trial.measurement import EpochTrace, Measurement
from autotune.trial.protocol import TrialRequest

if TYPE_CHECKING:
    import torch

WARM_UP_STEPS: Final = 3
DEVICE_WARM_UP_STEPS: Final = 6  # libraries load, kernels are chosen, compiled code records its graphs
PEAK_SECONDS: Final = 0.1  # between two looks at the device's memory
SHRUNK_EPOCH_RATIO: Final = 0.5  # of an earlier epoch; a shorter one has ended early
FETCHING: Final = "torch/utils/data/_utils/fetch.py"  # where a loader asks a dataset for samples
WORKER_EXIT_GRACE_SECONDS: Final = 1.0  # between the end of a worker's connections and its own
OnBatch = Callable[[int], None]


def warm_up_step(workload: LoadedWorkload, step: Step, device: torch.device, config: LoaderConfig) -> None:
    """Run the step a few times before anything is timed: its first calls import, allocate and compile.

    The batch comes from one worker where the configuration has workers, so that this process meets the dataset's
    code no earlier than a training process would.

    Args:
        workload: The user's pipeline.
        step: What consumes the batches.
        device: Where the step runs.
        config: The configuration to be measured next.

    Raises:
        Exception: Whatever dataset, collate or step raise.
    """
    one: dict[str, int] = {"num_workers": 1, "prefetch_factor": 1} if config.dataloader.num_workers else {}
    settings = DataLoaderSettings(batch_size=config.dataloader.batch_size, **one)
    process = ProcessSettings(multiprocessing_context=config.process.multiprocessing_context)
    loader = build_loader(workload, LoaderConfig(dataloader=settings, process=process))
    loader.gate.open(most_batches=1)
    steps = WARM_UP_STEPS if device.type == "cpu" else DEVICE_WARM_UP_STEPS
    for batch in itertools.islice(loader, 1):
        for _ in range(steps):
            step(batch)
    synchronize(device)


def settle_garbage() -> None:
    """Leave no full collection due: forked workers inherit when the next one is, and each would copy what it touches.

    Whether one is due depends on all that a process has imported, dltune's own modules included, and nobody can know it
    of the training process. Usually none is. Seen with seven workers: 65 MB and 0.2 s of CPU time each, 7 % of a run of
    ten short epochs.
    """
    gc.collect()


class SampleCountError(Exception):
    """An epoch delivered another number of batches or samples than it should have; its text continues "the trial"."""


class EpochRecorder:
    """Notes the times of one epoch.

    Args:
        loader: The loader under measurement.
        clock: Tells when the steps end.
        is_map: Whether the sampler's promise counts the samples.
        is_counted: Whether to count what arrives.
    """

    def __init__(self, loader: StoppableDataLoader, clock: StepTimer, *, is_map: bool, is_counted: bool) -> None:
        self._loader = loader
        self._clock = clock
        self._is_map = is_map
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
        return self._closed_after is not None or self._loader.gate.closed

    def close(self, epoch_batches: int | None) -> None:
        """Have the epoch end soon, and record where it was told to."""
        self._closed_after = self.batches
        self._loader.close(epoch_batches)

    def count_samples(self) -> int:
        """Count the samples up to and with the batch under way."""
        if self._is_map:
            return self._loader.gate.count_samples(self.batches + 1)
        return self.delivered + (self._loader.batch_size or 1)

    def look(self) -> EpochTrace:
        """Give the epoch as far as the device is through with it, as if it were closed now."""
        moments, waited = self._clock.read()
        return self._trace(moments, waited, moments[-1] if moments else 0.0, len(moments))

    def finish(self) -> EpochTrace:
        """Give the epoch, now that the loader says it is over or that it was left, and the device is through."""
        ended = time.perf_counter() - self._started
        moments, waited = self._clock.read()
        closed = self._closed_after
        if closed is None and self._loader.gate.closed:
            closed = len(moments)  # the gate closed by itself, at a mini-epoch's length
        return self._trace(moments, waited, max([ended, *moments[-1:]]), closed)

    def _trace(
        self, moments: Sequence[float], waited: float, end_seconds: float, closed_after: int | None
    ) -> EpochTrace:
        return EpochTrace(
            batch_seconds=tuple(round(moment, 6) for moment in moments),
            end_seconds=end_seconds,
            wait_seconds=waited,
            samples=self._loader.gate.count_samples(len(moments)) if self._is_map else self.delivered,
            promised_batches=self._loader.gate.batches if self._is_map else None,
            closed_after=closed_after,
        )


class TrialRun:
    """One trial under way: its loader, its pacer, its traces.

    Args:
        workload: The user's pipeline.
        step: What consumes the batches.
        device: Where the step runs.
        request: What to measure.
        on_batch: Called after each batch with the number of batches so far.
    """

    def __init__(
        self, workload: LoadedWorkload, step: Step, device: torch.device, request: TrialRequest, on_batch: OnBatch
    ) -> None:
        self._step = step
        self._device = device
        self._on_batch = on_batch
        self._workload = workload
        self._is_map = workload.kind == "map"
        self._is_counted = not self._is_map or _fetches_batches(workload)
        self._loader = build_loader(workload, request.config)
        self._workers = request.config.dataloader.num_workers
        self._epoch_batches = count_batches(self._loader, workload)
        self._epoch_samples = count_epoch_samples(self._loader, workload) or None
        self._pacer = StoppingRule(request, self._epoch_batches)
        self._gpu_bytes = request.gpu_bytes
        self._lane = make_copier(device) if request.config.process.device_prefetch else None
        self._peaks: list[int] = []
        self._traces: list[EpochTrace] = []
        self._batches = 0
        self._recorder: EpochRecorder | None = None
        self._iterator: Iterator[Any] | None = None
        self._batch: Any = None

    def count_samples(self) -> int:
        """Count the samples gone through so far, those of the batch under way included."""
        under_way = 0 if self._recorder is None else self._recorder.count_samples()
        return sum(trace.samples for trace in self._traces) + under_way

    def find_index(self, error: BaseException) -> int | None:
        """Find the index of the sample that could not be loaded in this process; None where the error does not tell."""
        index = find_requested_index(error)
        return index if index is not None and self._loader.gate.was_last(index) else None

    def run(self) -> Measurement:
        """Measure until the pacer has seen enough.

        Returns:
            The raw record. The workers still live; dropping this object takes them down.

        Raises:
            WrongCountError: What an epoch delivered is not what the dataset holds.
            Exception: Whatever dataset, collate or step raise.
        """
        limit_memory(self._device, self._gpu_bytes)
        reset_peak(self._device)
        settle_garbage()
        started = time.perf_counter()
        plan: int | str = UNLIMITED_BATCHES
        while isinstance(plan, int):
            try:
                trace = self._run_epoch(started, plan)
            except Exception as error:
                annotate_dead_workers(error, getattr(self._iterator, "_workers", ()))
                raise
            self._traces.append(trace)
            self._recorder = None
            self._learn_length(trace)
            plan = self._pacer.plan_next(self._traces, time.perf_counter() - started)
        return Measurement(
            epochs=tuple(self._traces),
            epoch_batches=self._epoch_batches,
            epoch_samples=self._epoch_samples,
            stopped=plan,
            peak_gpu_bytes=read_peak(self._device),
            gpu_growth_bytes=self._measure_growth(),
        )

    def _look_at_memory(self, elapsed: float) -> None:
        """Read the allocator's peak now and then: asking takes a tenth of a millisecond."""
        if self._device.type == "cuda" and elapsed >= len(self._peaks) * PEAK_SECONDS:
            self._peaks.append(read_peak(self._device))

    def _measure_growth(self) -> int:
        """Give by how much the device's memory grew in the second half of the batches."""
        return self._peaks[-1] - self._peaks[len(self._peaks) // 2] if self._peaks else 0

    def _run_epoch(self, trial_started: float, most_batches: int) -> EpochTrace:
        self._loader.gate.open(None if most_batches == UNLIMITED_BATCHES else most_batches, self._count_rest())
        clock = make_clock(self._device)
        recorder = EpochRecorder(self._loader, clock, is_map=self._is_map, is_counted=self._is_counted)
        self._recorder = recorder
        abandoned = False
        self._iterator = iter(self._loader)  # kept: letting go of it would take the workers down
        batches = self._iterator if self._lane is None else prefetch_batches(self._iterator, self._lane)
        while not abandoned:
            clock.ask()
            try:
                self._batch = next(batches)  # the one before lives until now, as in a training loop
            except StopIteration:
                break
            clock.begin()
            self._step(self._batch)
            clock.end()
            recorder.note_batch(self._batch)
            abandoned = self._attend(recorder, time.perf_counter() - trial_started)
        synchronize(self._device)
        trace = recorder.finish()
        if not abandoned:
            self._check_promise(trace)
            self._check_length(trace)
        if self._is_counted:
            self._check_samples(trace, recorder.delivered)
        return trace

    def _count_rest(self) -> int | None:
        """Count the samples of the last batch of a whole epoch; None where it is full, or only the data knows."""
        if not self._is_map or not self._epoch_samples or self._workload.batching == "user":
            return None
        return self._epoch_samples % (self._loader.batch_size or 1) or None

    def _attend(self, recorder: EpochRecorder, elapsed: float) -> bool:
        """Report progress and look at the clock; tell whether to leave the epoch where it is."""
        self._batches += 1
        self._on_batch(self._batches)
        self._look_at_memory(elapsed)
        if recorder.is_closing:
            return self._pacer.should_abandon(elapsed)
        if self._pacer.should_close(recorder.batches, recorder.look, not self._traces, elapsed):
            recorder.close(self._epoch_batches)
        return False

    def _check_promise(self, trace: EpochTrace) -> None:
        if trace.promised_batches is not None and trace.batches < trace.promised_batches:
            raise SampleCountError(
                f"ended an epoch after {trace.batches} of {trace.promised_batches} batches without an error. "
                "A StopIteration raised inside __getitem__ or collate_fn does this: let it raise another error"
            )

    def _check_length(self, trace: EpochTrace) -> None:
        """Hold a whole epoch against those before it."""
        if trace.closed_after is not None:
            return
        before = max((earlier.batches for earlier in self._traces if earlier.closed_after is None), default=0)
        if not self._traces and not trace.batches:
            raise SampleCountError(
                "delivered no batch at all: the dataset is empty, or shorter than one batch with drop_last. "
                "Give a smaller --batch-size"
            )
        if trace.batches < SHRUNK_EPOCH_RATIO * before:
            raise SampleCountError(
                f"ended epoch {len(self._traces) + 1} after {trace.batches} batches, and one before it had {before}. "
                "A dataset or sampler that can be gone through only once does this: start anew in every __iter__"
            )

    def _check_samples(self, trace: EpochTrace, delivered: int) -> None:
        """Hold the samples that arrived against those that were asked for, or that one process delivers."""
        if self._is_map:
            self._check_fetched(trace, delivered)
        elif self._workers > 1:
            self._check_shares(trace, delivered)
        elif trace.closed_after is None:
            self._workload.census.note(delivered)

    def _check_fetched(self, trace: EpochTrace, delivered: int) -> None:
        most_astray = self._loader.batch_size or 1  # where batches overtake each other, the short last one may be in
        if abs(delivered - trace.samples) >= most_astray:
            raise SampleCountError(
                f"delivered {delivered} samples where {trace.samples} were asked for: __getitems__ must return one "
                "sample for each index"
            )

    def _check_shares(self, trace: EpochTrace, delivered: int) -> None:
        census = self._workload.census
        if census.is_exceeded(delivered):
            raise SampleCountError(
                f"delivered {delivered} samples of a dataset of {census.samples}: each of its workers goes through all "
                "of it. Share it out in __iter__ by get_worker_info(), or tune with --max-workers 1"
            )
        dropped = self._workers * (self._loader.batch_size or 1) if self._loader.drop_last else 0
        if trace.closed_after is None and census.is_missed(delivered + dropped):
            raise SampleCountError(
                f"delivered {delivered} samples of a dataset of {census.samples}: the shares of its workers leave some "
                "out. Look at how __iter__ uses get_worker_info()"
            )

    def _learn_length(self, trace: EpochTrace) -> None:
        """A whole epoch tells its real length, which an iterable dataset or a sampler may have stated wrongly."""
        if trace.closed_after is None:
            self._epoch_batches = self._pacer.epoch_batches = trace.batches
            self._epoch_samples = trace.samples or None
        elif self._epoch_batches is not None and trace.batches > self._epoch_batches:
            self._epoch_batches = self._pacer.epoch_batches = self._epoch_samples = None


def annotate_dead_workers(error: Exception, workers: Sequence[BaseProcess]) -> None:
    """Add to an error how workers ended, in torch's own words, which it often has no time to find.

    Whoever asks a worker that is gone for a batch sees a closed connection or a missing file; only the exit status
    tells a signal from an exit.

    Args:
        error: What the loader raised; it gets a note for each worker that ended.
        workers: The workers of the epoch.
    """
    if any("in DataLoader worker" in words for words in error.args if isinstance(words, str)):
        return  # raised by the user's code, in a worker that lives
    is_connection = isinstance(error, OSError | EOFError)
    ended = wait([worker.sentinel for worker in workers], WORKER_EXIT_GRACE_SECONDS if is_connection else 0)
    for worker in workers:
        if worker.sentinel in ended:
            worker.join(WORKER_EXIT_GRACE_SECONDS)  # its files are closed; it is about to have an exit status
        code = worker.exitcode
        if code is not None and code < 0:
            error.add_note(f"DataLoader worker (pid {worker.pid}) is killed by signal: {signal.strsignal(-code)}")
        elif code or (code == 0 and is_connection):
            error.add_note(f"DataLoader worker (pid {worker.pid}) exited unexpectedly with exit code {code}")


def find_requested_index(error: BaseException) -> int | None:
    """Find which sample torch asked a dataset for when it raised, in the frames of the traceback.

    Args:
        error: What was raised; one of a worker has left its frames there.

    Returns:
        The index; None where there is none, or it is no number that the data could be asked for.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    asked = itertools.dropwhile(lambda frame: not frame.f_code.co_filename.endswith(FETCHING), frames)
    called = next((frame for frame in asked if frame.f_code.co_name == "__getitem__"), None)
    if called is None or called.f_code.co_argcount < 2:
        return None
    index = called.f_locals.get(called.f_code.co_varnames[1])
    return index if isinstance(index, int) and index >= 0 else None


def _fetches_batches(workload: LoadedWorkload) -> bool:
    """Tell whether the dataset fetches whole batches, whose samples can be counted afterwards."""
    return workload.stacks_samples and hasattr(workload.parts.dataset, "__getitems__")
