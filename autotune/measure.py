"""Times one configuration as a training run would feel it. Runs in the child; owns the clock and the loader.

What is timed is exactly `for batch in loader: step(batch)`, epoch after epoch: starting the workers, filling
the queue, the steady pace, the drain at the end. Nothing is torn down until the result has been reported.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from autotune.batches import count_samples
from autotune.devices import read_peak, reset_peak, synchronize
from autotune.loaders import GatedLoader, LoadedWorkload, build_loader, count_batches
from autotune.messages import EpochTrace, Measurement, TrialRequest
from autotune.pacing import OPEN_END, Pacer
from autotune.schema import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.steps import Step

if TYPE_CHECKING:
    import torch

WARM_UP_STEPS: Final = 3
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
    for batch in itertools.islice(loader, 1):
        for _ in range(WARM_UP_STEPS):
            step(batch)
    synchronize(device)


class WrongCountError(Exception):
    """An epoch delivered fewer batches than its sampler handed out."""


class Recorder:
    """Notes the times of one epoch.

    Args:
        loader: The loader under measurement.
        is_map: Whether the sampler's promise counts the samples.
    """

    def __init__(self, loader: GatedLoader, is_map: bool) -> None:
        self._loader = loader
        self._is_map = is_map
        self._started = time.perf_counter()
        self._times: list[float] = []
        self._waited = 0.0
        self._samples = 0
        self._closed_after: int | None = None

    @property
    def batches(self) -> int:
        """Batches consumed so far."""
        return len(self._times)

    def note_batch(self, batch: Any, waited: float) -> None:
        """Record that a batch has been consumed, after `waited` seconds of waiting for it."""
        self._times.append(time.perf_counter() - self._started)
        self._waited += waited
        if not self._is_map:
            self._samples += count_samples(batch, self._loader.batch_size or 1)

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is handed out, or soon will not be."""
        return self._closed_after is not None or self._loader.gate.closed

    def close(self, epoch_batches: int | None) -> None:
        """Have the epoch end soon, and record where it was told to."""
        self._closed_after = len(self._times)
        self._loader.close(epoch_batches)

    def look(self) -> EpochTrace:
        """Give the epoch so far, as if it were closed now."""
        return self._trace(self._times[-1] if self._times else 0.0, len(self._times))

    def finish(self) -> EpochTrace:
        """Give the epoch, now that the loader says it is over or that it was left."""
        closed = self._closed_after
        if closed is None and self._loader.gate.closed:
            closed = len(self._times)  # the gate closed by itself, at a mini-epoch's length
        return self._trace(time.perf_counter() - self._started, closed)

    def _trace(self, end_seconds: float, closed_after: int | None) -> EpochTrace:
        return EpochTrace(
            batch_seconds=tuple(round(moment, 6) for moment in self._times),
            end_seconds=end_seconds,
            wait_seconds=self._waited,
            samples=self._loader.gate.count_samples(len(self._times)) if self._is_map else self._samples,
            promised_batches=self._loader.gate.batches if self._is_map else None,
            closed_after=closed_after,
        )


class TrialMeasurement:
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
        self._is_map = workload.kind == "map"
        self._loader = build_loader(workload, request.config)
        self._epoch_batches = count_batches(self._loader, workload)
        self._pacer = Pacer(request, self._epoch_batches)
        self._traces: list[EpochTrace] = []
        self._batches = 0
        self._iterator: Iterator[Any] | None = None
        self._batch: Any = None

    def run(self) -> Measurement:
        """Measure until the pacer has seen enough.

        Returns:
            The raw record. The workers still live; dropping this object takes them down.

        Raises:
            WrongCountError: An epoch ended before all promised batches had come.
            Exception: Whatever dataset, collate or step raise.
        """
        reset_peak(self._device)
        started = time.perf_counter()
        plan: int | str = OPEN_END
        while isinstance(plan, int):
            self._traces.append(self._run_epoch(started, plan))
            self._learn_length(self._traces[-1])
            plan = self._pacer.plan_next(self._traces, time.perf_counter() - started)
        return Measurement(
            epochs=tuple(self._traces),
            epoch_batches=self._epoch_batches,
            stopped=plan,
            peak_gpu_bytes=read_peak(self._device),
        )

    def _run_epoch(self, trial_started: float, most_batches: int) -> EpochTrace:
        self._loader.gate.open(None if most_batches == OPEN_END else most_batches)
        recorder = Recorder(self._loader, self._is_map)
        abandoned = False
        self._iterator = iterator = iter(self._loader)  # kept: letting go of it would take the workers down
        while not abandoned:
            asked = time.perf_counter()
            try:
                self._batch = next(iterator)  # the one before lives until now, as in a training loop
            except StopIteration:
                break
            waited = time.perf_counter() - asked
            self._step(self._batch)
            recorder.note_batch(self._batch, waited)
            abandoned = self._attend(recorder, time.perf_counter() - trial_started)
        synchronize(self._device)
        trace = recorder.finish()
        if not abandoned:
            self._check_promise(trace)
        return trace

    def _attend(self, recorder: Recorder, elapsed: float) -> bool:
        """Report progress and look at the clock; tell whether to leave the epoch where it is."""
        self._batches += 1
        self._on_batch(self._batches)
        if recorder.is_closing:
            return self._pacer.should_abandon(elapsed)
        if self._pacer.should_close(recorder.batches, recorder.look, not self._traces, elapsed):
            recorder.close(self._epoch_batches)
        return False

    def _check_promise(self, trace: EpochTrace) -> None:
        if trace.promised_batches is not None and trace.batches < trace.promised_batches:
            raise WrongCountError(
                f"the epoch ended after {trace.batches} of {trace.promised_batches} batches without an error. "
                "A StopIteration raised inside __getitem__ or collate_fn does this; let it raise another error."
            )

    def _learn_length(self, trace: EpochTrace) -> None:
        """A whole epoch of an iterable dataset tells its real length."""
        if not self._is_map and trace.closed_after is None:
            self._epoch_batches = self._pacer.epoch_batches = trace.batches
