"""Serves the tuner in the process of a trial: loads a workload, profiles it, runs trials, stops workers.

A new interpreter imports torch when the workload is loaded, not before: earlier objects are frozen out of garbage
collection.
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
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from autotune.child.distributed import RankEnv, RankGroup, RankLostError, RankSync
from autotune.child.errors import format_error, make_printable, name_error
from autotune.protocol import messages
from autotune.protocol.messages import Channel, ChannelClosedError
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import split_import_string
from autotune.system.allocator import set_thresholds
from autotune.system.procfs import TRIAL_VARIABLE

if TYPE_CHECKING:
    import torch

    from autotune.child.step import Step
    from autotune.child.trial import TrialRun
    from autotune.child.workload import LoadedWorkload

DEVICE_VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # if user code sets them, it is always too late
PROGRESS_INTERVAL_SECONDS: Final = 0.25  # each report wakes the tuner, which takes CPU time from the trial


class TrialServer:
    """Carries out the tuner's commands one after another; with a `world`, as one of several ranks."""

    _workload: LoadedWorkload  # these three exist once the workload has been loaded
    _step: Step
    _device: torch.device

    def __init__(self, channel: Channel, world: RankEnv | None = None) -> None:
        self._channel, self._world, self._ranks = channel, world, RankSync()
        self._environment = dict[str, str]()  # before the user's code changes it
        self._stage: messages.Stage = "import"
        self._in_step = False
        self._known: WorkloadProfile | None = None  # by an earlier process
        self._trial: TrialRun | None = None
        self._warm_batch_sizes: set[int | None] = set()  # of the step
        self._before: set[object] = set()  # threads and processes that were alive before the trial
        self._phase, self._last_progress = "", 0.0
        self._on_lost_worker: Callable[[int, FrameType | None], Any] | int | None = signal.SIG_DFL
        os.register_at_fork(after_in_child=channel.close)  # a copy of this process must not reply in its place

    def serve(self, first: str | None = None) -> None:
        """Carry out commands until the tuner closes the connection; the first may have been received already."""
        with suppress(ChannelClosedError):
            while (line := first or self._channel.receive()) is not None:
                first = None
                self._channel.send(self._handle(messages.COMMAND.validate_json(line)))

    def _handle(self, command: messages.Command) -> str:
        """Carry out a command, and return the report as JSON.

        torch's handler of SIGCHLD is in force meanwhile, which raises anywhere once per dead worker.
        """
        try:
            try:
                signal.signal(signal.SIGCHLD, self._on_lost_worker)
                return self._carry_out(command).model_dump_json()
            finally:
                self._on_lost_worker = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        except BaseException as error:  # sys.exit() and KeyboardInterrupt of the user's code are results, too
            return self._report_failure(error).model_dump_json()

    def _carry_out(self, command: messages.Command) -> messages.Report:
        match command:
            case messages.LoadCommand():
                self._load(command)
            case messages.ProbeCommand():
                self._stage = "probe"
                return self._probe(command)
            case messages.TrialRequest():
                return self._run_trial(command)
            case messages.ReleaseCommand():
                self._release()
        return messages.ReadyReport(on_device=self._uses_device())

    def _load(self, command: messages.LoadCommand) -> None:
        self._show("importing torch")
        from autotune.child.device import resolve_device
        from autotune.child.step import make_step
        from autotune.child.workload import load_workload, take_share

        folder = Path.cwd()  # the user's code may change it
        sys.path.insert(0, str(folder))
        request = command.workload
        self._stage = "device"
        self._device = resolve_device(request.device, 0 if self._world is None else self._world.rank)
        if self._world is not None:
            self._stage = "ranks"
            self._ranks = self._world.init_process_group()
        self._environment, self._stage = dict(os.environ), "dataset"
        self._show(f"calling {request.dataset}")
        if sys.version_info >= (3, 14):  # in training, its fork server imports the script, and so what that imports
            names = (split_import_string(one) for one in (request.dataset, request.step or ""))
            modules = [Path(name[0]).stem if name[0].endswith(".py") else name[0] for name in names if name]
            multiprocessing.set_forkserver_preload(["autotune.child.loader", *modules])
        self._known = known = command.known
        loaded = load_workload(request, None if known is None else known.ends_with_sampler)
        self._workload = loaded if self._world is None or self._world.size == 1 else take_share(loaded)
        if known is not None:
            counted = known.counted_samples if command.ranks == 1 else None  # ranks may divide an epoch
            self._workload.sample_counts.samples = counted
            self._workload.sample_counts.reads_worker_info = known.reads_worker_info
            self._workload.sample_counts.are_duplicated = known.workers_duplicate_data
        self._stage = "step"
        self._show(f"making the step ({request.describe_step()})")
        step = make_step(request, self._device, folder)

        def watched(batch: Any) -> None:
            self._in_step = True
            step(batch)
            self._in_step = False

        self._step = watched
        if request.step_seconds is not None and self._device.type == "cpu":
            self._warm_batch_sizes.add(None)

    def _probe(self, command: messages.ProbeCommand) -> messages.Report:
        from autotune.child.probe import profile_workload
        from autotune.child.probe_workers import complete_profile

        if command.profile is not None:
            profile = complete_profile(self._workload, command, command.profile, self._show)
            return messages.ProbeReport(profile=profile)
        if self._device.type == "cpu":
            self._warm_batch_sizes.add(None)
        report = profile_workload(self._workload, self._step, self._device, command, self._show)
        folder = self._environment[TRIAL_VARIABLE]  # it is removed with this process
        changed = {
            name: value
            for name, value in os.environ.items()
            if self._environment.get(name) != value and name not in DEVICE_VARIABLES and folder not in value
            if make_printable(value) == value  # JSON needs UTF-8
        }
        self._known = report.profile
        return report.model_copy(update={"environment": changed})

    def _run_trial(self, request: messages.TrialRequest) -> messages.TrialReport:
        from autotune.child.device import limit_memory
        from autotune.child.trial import TrialRun, warm_up_step

        limit_memory(self._device, request.gpu_bytes)  # before the step warms up
        self._trial, self._in_step = None, False
        self._stage = "trial"
        settings = request.config.dataloader
        self._show("starting workers")
        first_use_seconds = 0.0
        key = None if self._device.type == "cpu" else settings.batch_size  # a device chooses kernels for each size
        if key not in self._warm_batch_sizes:
            self._warm_batch_sizes.add(key)
            first_use_seconds = warm_up_step(self._workload, self._step, self._device, request.config, self._show)
        if self._known is not None and not settings.num_workers:
            set_thresholds(self._known.sample_bytes, settings.batch_size or self._known.probe_batch_size)
        on_batch = partial(self._show, messages.MEASURING_PHASE)
        self._before = _list_alive()
        self._trial = TrialRun(
            self._workload, self._step, self._device, request, on_batch, self._ranks, first_use_seconds
        )
        self._show(messages.MEASURING_PHASE)
        return messages.TrialReport(measurement=self._trial.run())

    def _release(self) -> None:
        """Stop the trial's workers; raise RuntimeError if something is left: the tuner then starts another process."""
        from autotune.child.device import reset_peak

        has_batches = self._trial is not None and self._trial.end_workers()
        self._trial = None
        if self._workload.own is not None:
            gc.collect()
        reset_peak(self._device)  # else its pinned memory counts for the next trial
        if self._workload.batches_are_external and not _list_alive() <= self._before:
            raise RuntimeError("has threads or processes left of a loader that does not end them")
        if has_batches:  # they would count as those of the next trial; the end of this process removes them
            raise RuntimeError("has batches left in /dev/shm that were not fetched")

    def _report_failure(self, error: BaseException) -> messages.FailureReport:
        stage: messages.Stage = "running step" if self._in_step else self._stage
        stage = "ranks" if isinstance(error, RankLostError) else stage
        samples = self._trial.count_samples() if self._trial is not None and self._stage == "trial" else 0
        details, on_device = format_error(error), self._uses_device()
        return messages.FailureReport(
            stage=stage, error=name_error(error), details=details, on_device=on_device, samples=samples
        )

    def _uses_device(self) -> bool:
        """Return whether this process uses an accelerator, for the step or in the dataset."""
        is_early = self._stage in ("import", "device")
        return not is_early and (self._device.type != "cpu" or bool(sys.modules["torch"].cuda.is_initialized()))

    def _show(self, phase: str, batches: int = 0) -> None:
        self._in_step = False  # the probe continues after some errors of the step
        if phase == self._phase and time.monotonic() - self._last_progress < PROGRESS_INTERVAL_SECONDS:
            return
        self._phase, self._last_progress = phase, time.monotonic()
        self._channel.send(messages.ProgressReport(phase=phase, batches=batches).model_dump_json())


def _list_alive() -> set[object]:
    return {*threading.enumerate(), *multiprocessing.active_children()}


def serve_tuner(channel: Channel) -> None:
    """Serve the tuner until it closes the channel: in this process, or in one for each rank."""
    try:
        first = channel.receive() or ""
    except ChannelClosedError:
        return
    command = messages.COMMAND.validate_json(first)
    if isinstance(command, messages.LoadCommand) and command.workload.nproc_per_node > 1:
        RankGroup(channel, command.ranks, lambda own, env: TrialServer(own, env).serve()).serve(first)
    else:
        TrialServer(channel).serve(first)
