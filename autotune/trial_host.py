"""The child process in which the user's code runs: one dataset, one step, many trials.

Started as `python -P -m autotune.trial_host FD PARENT_PID` by `autotune.trial_runner`, never imported by it.

Arguments: FD, an inherited stream socket; PARENT_PID, the process whose end ends this one.
Messages in (`autotune.messages.Command`): `hello` once, then `probe`, `run` and `release` in any number.
Messages out (`Report`): `ready` after `hello` and after `release`; `probed`; `measured`; `failed` instead of
any of them when the user's code or torch raised; `progress` at any time, about five a second while measuring.
Exit codes: 0 when the line is closed by the parent; 3 when the parent was gone at the start.
stdout and stderr belong to the user's code and are never read as messages.

The top of this file imports the standard library only: a spawned DataLoader worker imports it again.
"""

from __future__ import annotations

import ctypes
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

if TYPE_CHECKING:
    from autotune.channel import Channel
    from autotune.messages import Command
    from autotune.schema import Value

PR_SET_PDEATHSIG: Final = 1
PROGRESS_SECONDS: Final = 0.2
HOUSE: Final = str(Path(__file__).parent)


def guard_process(parent_pid: int) -> None:
    """Make sure that this process and all it forks die with the tuner and harm nobody meanwhile.

    Args:
        parent_pid: The tuner.
    """
    _die_with(parent_pid)
    os.register_at_fork(before=_remember_parent, after_in_child=_die_with_forker)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel must never pick the user's other work
    except OSError:
        pass
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


_libc = ctypes.CDLL(None, use_errno=True)
_forker = 0


def _remember_parent() -> None:
    global _forker  # noqa: PLW0603  # set by one at-fork hook, read by the other
    _forker = os.getpid()


def _die_with_forker() -> None:
    _die_with(_forker)


def _die_with(parent_pid: int) -> None:
    if sys.platform != "linux":
        return
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(3)


class Host:
    """Carries the parent's commands out, one after another.

    Args:
        channel: The line to the parent.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._where = "import"
        self._last_progress = 0.0
        self._workload: Any = None
        self._step: Any = None
        self._device: Any = None
        self._trial: Any = None
        self._is_warm = False
        self._is_step_warm = False
        self._in_step = False
        os.register_at_fork(after_in_child=channel.close)  # a copy of this process must not answer in its place

    def serve(self) -> None:
        """Answer commands until the parent closes the line."""
        from autotune.channel import ChannelClosedError
        from autotune.messages import COMMAND

        try:
            while (line := self._channel.receive()) is not None:
                self._answer(COMMAND.validate_json(line))
        except ChannelClosedError:
            return

    def _answer(self, command: Command) -> None:
        from autotune.messages import Failed

        try:
            report = self._carry_out(command)
        except BaseException as error:  # sys.exit() and KeyboardInterrupt of the user's code are results, too
            where = "running step" if self._in_step else self._where
            report = Failed(where=where, error=_name_error(error), details=_format_error(error))
        self._channel.send(report.model_dump_json())

    def _carry_out(self, command: Command) -> Value:
        from autotune.messages import Hello, Measured, Probe, Probed, Ready, Run

        match command:
            case Hello():
                self._load(command)
            case Probe():
                return Probed(profile=self._probe(command))
            case Run(trial=request):
                return Measured(measurement=self._measure(request))
            case _:
                self._trial = None
        return Ready()

    def _load(self, hello: Any) -> None:
        self._show("importing torch")
        from autotune.devices import resolve_device
        from autotune.loaders import load_workload
        from autotune.steps import make_step

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
        self._is_step_warm = request.step_seconds is not None and self._device.type == "cpu"  # it only sleeps

    def _probe(self, order: Any) -> Any:
        from autotune.probe import profile_workload

        self._where = "probe"
        self._is_warm = self._is_step_warm = True
        return profile_workload(self._workload, self._step, self._device, order, self._show)

    def _measure(self, request: Any) -> Any:
        from autotune.measure import TrialMeasurement, warm_up_step

        self._where, self._in_step = "trial", False
        self._show("starting workers")
        self._trial = None
        if not request.fresh and request.config.dataloader.num_workers:
            self._warm_up()
        if not self._is_step_warm:
            self._show("warming the step up")
            warm_up_step(self._workload, self._step, self._device, request.config)
            self._is_step_warm = True
        self._trial = TrialMeasurement(self._workload, self._step, self._device, request, self._count)
        return self._trial.run()

    def _watch_step(self, step: Any) -> Any:
        """Remember whether the step is running, so that its failure is not blamed on the data."""

        def watched(batch: Any) -> None:
            self._in_step = True
            step(batch)
            self._in_step = False

        return watched

    def _warm_up(self) -> None:
        """Pay what a process pays once outside the trial, where scores account for it; a probe has done so already."""
        from autotune.worker_costs import fetch_samples, measure_manager_start

        if self._is_warm:
            return
        if self._workload.batching == "batch_size":
            fetch_samples(self._workload, 1)
        measure_manager_start()
        self._is_warm = True

    def _count(self, batches: int) -> None:
        now = time.monotonic()
        if now - self._last_progress > PROGRESS_SECONDS:
            self._show("measuring", batches)

    def _show(self, phase: str, batches: int = 0) -> None:
        from autotune.messages import Progress

        self._last_progress = time.monotonic()
        self._channel.send(Progress(phase=phase, batches=batches).model_dump_json())


def _name_error(error: BaseException) -> str:
    """Name an error as its traceback's last line does; the text of a broken `__str__` is left out."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _format_error(error: BaseException) -> str:
    """Format a traceback without the frames of dltune, which are of no use to the user."""
    lines = traceback.TracebackException.from_exception(error)
    lines.stack = traceback.StackSummary.from_list(
        [frame for frame in lines.stack if not frame.filename.startswith(HOUSE)]
    )
    return "".join(lines.format())


def main() -> None:
    """Serve the parent named on the command line."""
    descriptor, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    guard_process(parent_pid)
    sys.argv[:] = sys.argv[:1]
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    import autotune.messages  # noqa: F401  # before the freeze, with pydantic
    from autotune.channel import Channel

    gc.freeze()  # else each worker's garbage collector would touch, and so copy, what a training process does not have
    Host(Channel(connection)).serve()
    os._exit(0)  # threads and exit handlers of the user's code must not keep a finished child alive


if __name__ == "__main__":
    main()
