"""Carries out what the tuner asks of a trial's process: load a workload, probe it, run trials, take workers down.

torch is imported when the workload is loaded, not before: what is here earlier is frozen out of garbage collection.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from autotune.child.distributed import Alone, RankLostError
from autotune.child.errors import format_error, name_error
from autotune.protocol import messages
from autotune.protocol.channel import Channel, ChannelClosedError
from autotune.system.processes import count_threads

if TYPE_CHECKING:
    import torch

    from autotune.child.distributed import World
    from autotune.child.step import Step
    from autotune.child.trial import TrialRun
    from autotune.child.workload import LoadedWorkload
    from autotune.protocol.measurement import Measurement
    from autotune.request import WorkloadRequest

PROGRESS_INTERVAL_SECONDS: Final = 0.25  # each report wakes the tuner, which takes CPU from those who load


class ProcessTaintedError(Exception):
    """This process can measure no further trial; the tuner starts another one."""


class TrialServer:
    """Carries the tuner's commands out, one after another; in a world of several training processes, as one of them."""

    _request: WorkloadRequest  # these five are there once the workload has been loaded
    _workload: LoadedWorkload
    _may_warm_up: bool
    _step: Step
    _device: torch.device

    def __init__(self, channel: Channel, world: World | None = None) -> None:
        self._channel = channel
        self._world = world
        self._ranks = Alone()
        self._where = "import"
        self._trial: TrialRun | None = None
        self._needs_warm_step = True
        self._warm_batch_sizes: set[int | None] = set()
        self._is_process_warm = False
        self._in_step = False
        self._is_tainted = False
        self._threads: set[threading.Thread] = set()  # before the trial, as are these
        self._children: set[BaseProcess] = set()
        self._last_progress = 0.0
        self._on_lost_worker: Callable[[int, FrameType | None], Any] | int | None = signal.SIG_DFL
        os.register_at_fork(after_in_child=channel.close)  # a copy of this process must not answer in its place

    def serve(self, first: str | None = None) -> None:
        """Answer commands until the tuner closes the line; the first may have been received already."""
        try:
            while (line := first or self._channel.receive()) is not None:
                first = None
                self._channel.send(self._answer(messages.COMMAND.validate_json(line)).model_dump_json())
        except ChannelClosedError:
            return

    def _answer(self, command: messages.Command) -> messages.Report:
        """Carry a command out, and listen to torch's handler of SIGCHLD only meanwhile.

        It raises wherever this process happens to be, once for each worker that died: in the middle of a message, or
        while the death of another is being reported.
        """
        try:
            try:
                signal.signal(signal.SIGCHLD, self._on_lost_worker)
                return self._carry_out(command)
            finally:
                self._on_lost_worker = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        except BaseException as error:  # sys.exit() and KeyboardInterrupt of the user's code are results, too
            return self._report_failure(error)

    def _carry_out(self, command: messages.Command) -> messages.Report:
        match command:
            case messages.LoadCommand():
                self._load(command)
            case messages.ProbeCommand():
                return self._probe(command)
            case messages.IdentifyCommand():
                return self._identify(command)
            case messages.TrialCommand():
                return messages.TrialReport(measurement=self._run_trial(command.trial))
            case messages.ReleaseCommand():
                self._release()
        return messages.ReadyReport(on_device=self._uses_device())

    def _load(self, command: messages.LoadCommand) -> None:
        self._show("importing torch")
        from autotune.child.device import resolve_device
        from autotune.child.importing import become_script
        from autotune.child.step import make_step

        sys.path.insert(0, str(Path.cwd()))
        request = self._request = command.workload
        if request.main is not None:
            become_script(request.main, request.dataset)
        self._where = "device"
        self._device = resolve_device(request.device, 0 if self._world is None else self._world.rank)
        if self._world is not None:
            self._where = "ranks"
            self._ranks = self._world.join()
        self._where = "dataset"
        self._show(f"calling {request.dataset}")
        self._workload = self._load_workload(command.ends_with_sampler)
        self._may_warm_up = command.warm_up
        self._where = "step"
        self._show(f"making the step ({request.describe_step()})")
        self._step = self._watch_step(make_step(request, self._device))
        self._needs_warm_step = request.step_seconds is None or self._device.type != "cpu"  # else it only sleeps

    def _load_workload(self, ends_with_sampler: bool | None) -> LoadedWorkload:
        """Load it; each of several training processes its share, where its loader does not see to that."""
        from autotune.child.workload import load_workload, take_share

        loaded = load_workload(self._request, ends_with_sampler)
        return loaded if self._world is None or self._world.size == 1 else take_share(loaded)

    def _probe(self, command: messages.ProbeCommand) -> messages.ProbeReport | messages.TracesReport:
        from autotune.child.probe import profile_workload

        self._where = "probe"
        self._is_process_warm = True
        if self._device.type == "cpu":
            self._needs_warm_step = False
        profile = profile_workload(self._workload, self._step, self._device, command, self._show)
        if isinstance(profile, messages.Traces):
            return messages.TracesReport(traces=profile)
        return messages.ProbeReport(profile=profile)

    def _identify(self, command: messages.IdentifyCommand) -> messages.IdentityReport:
        from autotune.child.probe import identify_workload

        self._where = "probe"
        return identify_workload(self._workload, self._device, command.batch_size, self._show)

    def _run_trial(self, request: messages.TrialRequest) -> Measurement:
        from autotune.child.trial import TrialRun, warm_up_step

        self._trial, self._in_step = None, False
        self._where = "trial"
        self._show("starting workers")
        settings = request.config.dataloader
        if not request.fresh and settings.num_workers:
            self._warm_up_process(request.config.process.sharing_strategy)
        if self._is_step_cold(settings.batch_size):
            self._show("warming the step up")
            warm_up_step(self._workload, self._step, self._device, request.config)
        self._threads, self._children = set(threading.enumerate()), set(multiprocessing.active_children())
        self._trial = TrialRun(self._workload, self._step, self._device, request, self._note_batches, self._ranks)
        threads = count_threads()
        self._show(messages.MEASURING_PHASE)
        measurement = self._trial.run()
        if not settings.num_workers and self._workload.forks_workers:
            sets_workers_up = self._workload.parts.worker_init_fn is not None
            computes = sets_workers_up and count_threads() > threads
            self._is_tainted = computes or self._has_new_threads() or not self._may_warm_up
        return measurement

    def _is_step_cold(self, batch_size: int | None) -> bool:
        """Tell whether the step is still to be warmed up; on a device, kernels are chosen for each size of batch."""
        if not self._needs_warm_step or batch_size in self._warm_batch_sizes:
            return False
        self._warm_batch_sizes.add(batch_size)
        self._needs_warm_step = self._device.type != "cpu"
        return True

    def _warm_up_process(self, sharing_strategy: str) -> None:
        """Pay what a process pays once outside the trial, where scores account for it; a probe has done so already."""
        from autotune.child.probe_workers import connect_manager, fetch_samples, single_thread
        from autotune.child.sharding import count_samples_single_process

        if sharing_strategy == "file_system":
            connect_manager()
        if self._is_process_warm or not self._may_warm_up:
            return
        if self._workload.is_opaque:
            return
        if self._workload.batching == "batch_size":
            with single_thread():
                fetch_samples(self._workload, 1)
        if self._workload.kind == "iterable":
            count_samples_single_process(self._workload)
        self._is_process_warm = True

    def _release(self) -> None:
        """Take the trial's workers down, and refuse to go on where the workers of other trials would hang.

        A dataset that computes on several threads in this process leaves OpenMP in a state that does not survive a
        fork. It matters only to workers that are set up to use several threads, too. Nor does a thread that reads ahead
        survive it, for which workers may wait. And what a loader of another library has started, and not ended, would
        go on beside the next trial.
        """
        if self._trial is not None:
            self._trial.end_workers()
        self._trial = None
        if self._workload.own is not None:
            gc.collect()
        if self._workload.is_opaque:
            left = set(multiprocessing.active_children()) - self._children
            if left or self._has_new_threads():
                raise ProcessTaintedError("has threads or processes left of a loader that does not end them")
        if self._is_tainted:
            raise ProcessTaintedError("has read by itself, or computed on several threads; workers may inherit that")

    def _has_new_threads(self) -> bool:
        """Tell whether Python threads are alive that were not before the trial."""
        return not self._threads.issuperset(threading.enumerate())

    def _watch_step(self, step: Step) -> Step:
        """Remember whether the step is running, so that its failure is not blamed on the data."""

        def watched(batch: Any) -> None:
            self._in_step = True
            step(batch)
            self._in_step = False

        return watched

    def _report_failure(self, error: BaseException) -> messages.FailureReport:
        where = "running step" if self._in_step else self._where
        where = "ranks" if isinstance(error, RankLostError) else where
        words = name_error(error)
        if where == "probe" and isinstance(error, Exception):
            from autotune.child.data_checks import describe_failure_rate

            self._show("counting samples that raise")
            words = "\n".join(filter(None, (words, describe_failure_rate(self._workload))))
        trial = self._trial if self._where == "trial" else None
        return messages.FailureReport(
            where=where,
            error=words,
            details=format_error(error),
            on_device=self._uses_device(),
            samples=0 if trial is None else trial.count_samples(),
            index=None if trial is None else trial.find_index(error),
        )

    def _uses_device(self) -> bool:
        """Tell whether this process uses an accelerator: for the step, or because the dataset does."""
        if self._where in ("import", "device"):
            return False
        if self._device.type != "cpu":
            return True
        import torch

        return bool(torch.cuda.is_initialized())

    def _note_batches(self, batches: int) -> None:
        if time.monotonic() - self._last_progress > PROGRESS_INTERVAL_SECONDS:
            self._show(messages.MEASURING_PHASE, batches)

    def _show(self, phase: str, batches: int = 0) -> None:
        self._last_progress = time.monotonic()
        self._channel.send(messages.ProgressReport(phase=phase, batches=batches).model_dump_json())
