"""The child process in which the user's code runs: one dataset, one step, many trials.

Started as `python -P -m autotune.child.server FD PARENT_PID WALLS` by `autotune.runner.runner`, never imported by it.

Arguments: FD, an inherited stream socket; PARENT_PID, the process whose end ends this one; WALLS, what
`autotune.child.namespaces` puts up around it, as JSON.
Messages in (`autotune.trial.protocol.Command`): `hello` once, then `probe`, `run` and `release` in any number.
Messages out (`Report`): `ready` after `hello` and after `release`; `probed`; `measured`; `failed` instead of
any of them when the user's code or torch raised; `progress` at any time, about five a second while measuring.
Exit codes: 0 when the line is closed by the parent; 3 when the parent was gone at the start; 4 when the walls could
not be put up, for the reason on stderr.
stdout and stderr belong to the user's code and are never read as messages.

The top of this file imports the standard library only: a spawned DataLoader worker imports it again.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.child.keeper import continue_under_keeper
from autotune.child.namespaces import die_with_parent, enter_sandbox
from autotune.trial.sandbox_spec import SandboxSpec

if TYPE_CHECKING:
    from autotune.config import FrozenModel
    from autotune.trial.channel import Channel
    from autotune.trial.protocol import Command

PROGRESS_SECONDS: Final = 0.25  # each report wakes the tuner, which takes CPU from those who load
PACKAGE_DIR: Final = str(Path(__file__).parents[1])


def guard_process() -> None:
    """Make sure that this process, and all that it forks, harm nobody."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel must never pick the user's other work
    except OSError:
        pass
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _go_under_guard(tuner: int, walls: SandboxSpec, descriptor: int) -> None:
    """Go on in a process that is ended, with all that it starts, when the tuner ends or says so."""
    if sys.platform != "linux":
        return
    die_with_parent()
    if os.getppid() != tuner:
        os._exit(3)
    _put_up(walls, descriptor)
    if not walls.own_pids:  # else the namespace's init does it
        continue_under_keeper(tuner, descriptor)


class ProcessTaintedError(Exception):
    """This process can measure no further trial; the parent starts another one."""


class TrialServer:
    """Carries the parent's commands out, one after another.

    Args:
        channel: The line to the parent.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._where = "import"
        self._needs_warm_step = True
        self._last_progress = 0.0
        self._workload: Any = None
        self._step: Any = None
        self._device: Any = None
        self._trial: Any = None
        self._is_warm = False
        self._warm_sizes: set[int | None] = set()
        self._in_step = False
        self._is_spent = False
        self._on_lost_worker: Any = signal.SIG_DFL
        os.register_at_fork(after_in_child=channel.close)  # a copy of this process must not answer in its place

    def serve(self) -> None:
        """Answer commands until the parent closes the line."""
        from autotune.trial.channel import ChannelClosedError
        from autotune.trial.protocol import COMMAND

        try:
            while (line := self._channel.receive()) is not None:
                report = self._answer(COMMAND.validate_json(line))
                self._channel.send(report.model_dump_json())
        except ChannelClosedError:
            return

    def _answer(self, command: Command) -> FrozenModel:
        """Carry a command out, and listen to torch's handler of SIGCHLD only meanwhile.

        It raises wherever this process happens to be, once for each worker that died: in the middle of a message, or
        while the death of another is being reported.
        """
        try:
            try:
                signal.signal(signal.SIGCHLD, self._on_lost_worker)
                report = self._carry_out(command)
            finally:
                self._on_lost_worker = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        except BaseException as error:  # sys.exit() and KeyboardInterrupt of the user's code are results, too
            return self._explain(error)
        return report

    def _explain(self, error: BaseException) -> FrozenModel:
        from autotune.trial.protocol import FailureReport

        where = "running step" if self._in_step else self._where
        words = _name_error(error)
        if where == "probe" and isinstance(error, Exception):
            words = "\n".join(filter(None, (words, self._describe_rate())))
        trial = self._trial if self._where == "trial" else None
        return FailureReport(
            where=where,
            error=words,
            details=_format_error(error),
            on_device=self._uses_device(),
            samples=0 if trial is None else trial.count_samples(),
            index=None if trial is None else trial.find_index(error),
        )

    def _describe_rate(self) -> str | None:
        """Say how many samples raise, since one has."""
        from autotune.child.sample_errors import describe_rate

        self._show("counting samples that raise")
        return describe_rate(self._workload)

    def _uses_device(self) -> bool:
        """Tell whether this process uses an accelerator: for the step, or because the dataset does."""
        if self._device is None or self._device.type != "cpu":
            return self._device is not None
        import torch

        return bool(torch.cuda.is_initialized())

    def _carry_out(self, command: Command) -> FrozenModel:
        from autotune.trial.protocol import (
            LoadCommand,
            ProbeCommand,
            ProbeReport,
            ReadyReport,
            TrialCommand,
            TrialReport,
        )

        match command:
            case LoadCommand():
                self._load(command)
            case ProbeCommand():
                return ProbeReport(profile=self._probe(command))
            case TrialCommand(trial=request):
                return TrialReport(measurement=self._measure(request))
            case _:
                self._release()
        return ReadyReport(on_device=self._uses_device())

    def _load(self, hello: Any) -> None:
        self._show("importing torch")
        from autotune.child.device import resolve_device
        from autotune.child.training_step import make_step
        from autotune.child.workload_loading import load_workload

        sys.path.insert(0, str(Path.cwd()))
        request = hello.workload
        self._where = "device"
        self._device = resolve_device(request.device)
        self._where = "dataset"
        self._show(f"calling {request.dataset}")
        self._workload = load_workload(request)
        self._where = "step"
        self._show(f"making the step ({request.describe_step()})")
        self._step = self._watch_step(make_step(request, self._device))
        self._needs_warm_step = request.step_seconds is None or self._device.type != "cpu"  # else it only sleeps

    def _probe(self, order: Any) -> Any:
        from autotune.child.probe import profile_workload

        self._where = "probe"
        self._is_warm = True
        if self._device.type == "cpu":
            self._needs_warm_step = False
        return profile_workload(self._workload, self._step, self._device, order, self._show)

    def _measure(self, request: Any) -> Any:
        from autotune.child.measurement import TrialRun, warm_up_step

        self._where, self._in_step = "trial", False
        self._show("starting workers")
        self._trial = None
        if not request.fresh and request.config.dataloader.num_workers:
            self._warm_up(request.config.process.sharing_strategy)
        if self._is_step_cold(request.config.dataloader.batch_size):
            self._show("warming the step up")
            warm_up_step(self._workload, self._step, self._device, request.config)
        self._trial = TrialRun(self._workload, self._step, self._device, request, self._count)
        threads = _count_threads()
        measured = self._trial.run()
        workers, sets_workers_up = (
            request.config.dataloader.num_workers,
            self._workload.parts.worker_init_fn is not None,
        )
        self._is_spent = not workers and sets_workers_up and _count_threads() > threads
        return measured

    def _is_step_cold(self, batch_size: int | None) -> bool:
        """Tell whether the step is still to be warmed up; on a device, kernels are chosen for each size of batch."""
        if not self._needs_warm_step or batch_size in self._warm_sizes:
            return False
        self._warm_sizes.add(batch_size)
        self._needs_warm_step = self._device.type != "cpu"
        return True

    def _release(self) -> None:
        """Take the trial's workers down, and refuse to go on where the workers of other trials would hang.

        A dataset that computes on several threads in this process leaves OpenMP in a state that does not survive a
        fork. It matters only to workers that are set up to use several threads, too.
        """
        self._trial = None
        if self._is_spent:
            raise ProcessTaintedError("has computed on several threads; workers that it forks may hang")

    def _watch_step(self, step: Any) -> Any:
        """Remember whether the step is running, so that its failure is not blamed on the data."""

        def watched(batch: Any) -> None:
            self._in_step = True
            step(batch)
            self._in_step = False

        return watched

    def _warm_up(self, sharing_strategy: str) -> None:
        """Pay what a process pays once outside the trial, where scores account for it; a probe has done so already."""
        from autotune.child.probe_workers import (
            connect_manager,
            count_samples_single_process,
            fetch_samples,
            single_thread,
        )

        if sharing_strategy == "file_system":
            connect_manager()
        if self._is_warm:
            return
        if self._workload.batching == "batch_size":
            with single_thread():
                fetch_samples(self._workload, 1)
        if self._workload.kind == "iterable":
            count_samples_single_process(self._workload)
        self._is_warm = True

    def _count(self, batches: int) -> None:
        now = time.monotonic()
        if now - self._last_progress > PROGRESS_SECONDS:
            self._show("measuring", batches)

    def _show(self, phase: str, batches: int = 0) -> None:
        from autotune.trial.protocol import ProgressReport

        self._last_progress = time.monotonic()
        self._channel.send(ProgressReport(phase=phase, batches=batches).model_dump_json())


def _count_threads() -> int:
    """Count the threads of this process, also those that Python knows nothing of; 0 where the system does not tell."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 0


def _name_error(error: BaseException) -> str:
    """Name an error as its traceback's last line does; the text of a broken `__str__` is left out."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _format_error(error: BaseException) -> str:
    """Format a traceback without the frames of dltune, which are of no use to the user."""
    lines = traceback.TracebackException.from_exception(error)
    lines.stack = traceback.StackSummary.from_list(
        [frame for frame in lines.stack if not frame.filename.startswith(PACKAGE_DIR)]
    )
    return "".join(lines.format())


def _put_up(walls: SandboxSpec, descriptor: int) -> None:
    try:
        enter_sandbox(walls, descriptor)
    except OSError as error:
        sys.stderr.write(f"isolation: {error}\n")
        sys.exit(4)


def main() -> None:
    """Serve the parent named on the command line."""
    descriptor, tuner, walls = int(sys.argv[1]), int(sys.argv[2]), SandboxSpec.from_json(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # also for those who wait: they end by the same signal
    _go_under_guard(tuner, walls, descriptor)
    guard_process()
    sys.argv[:] = sys.argv[:1]
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    import autotune.trial.protocol  # noqa: F401  # before the freeze, with pydantic
    from autotune.trial.channel import Channel

    gc.freeze()  # else each worker's garbage collector would touch, and so copy, what a training process does not have
    TrialServer(Channel(connection)).serve()
    os._exit(0)  # threads and exit handlers of the user's code must not keep a finished child alive


if __name__ == "__main__":
    main()
