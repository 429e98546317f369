"""Has the supervisor (`child/supervisor.py`) start the processes of trials, and end them.

A trial's process is never a `multiprocessing.Process`: inside a spawned child, multiprocessing's default start method
becomes the parent's, so the DataLoader's own workers would silently be spawned instead of forked and take twenty times
longer to start.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, Self

from autotune.errors import UsageError
from autotune.request import WorkloadRequest
from autotune.system.procfs import PROC, TRIAL_VARIABLE, list_tree, signal_all

MAX_REPLY_SECONDS: Final = 120.0  # the first reply waits until torch is imported, maybe from a slow disk
MAX_IMPORT_SECONDS: Final = 60.0
MAX_END_SECONDS: Final = 20.0
OPTIMIZER_MODULES: Final = ("torch._dynamo",)  # the first optimizer imports it, which takes a second or two


def check_not_in_trial() -> None:
    """Raise UsageError in a process of a trial, which must not start others."""
    if TRIAL_VARIABLE in os.environ:
        raise UsageError('A trial imported a module that tunes: put the call under if __name__ == "__main__".')


class SupervisorClient:
    """Starts trials, one at a time; entering its context begins to import torch.

    Args:
        workload: What the trials measure; None is any dataset in one training process.
    """

    def __init__(self, workload: WorkloadRequest | None = None) -> None:
        self._processes = 1 if workload is None else workload.nproc_per_node
        has_step = workload is not None and workload.step is not None
        self._modules: tuple[str, ...] = OPTIMIZER_MODULES if has_step else ()  # that trials import
        self._environment: dict[str, str] = {}  # that they set before
        self._has_imported = not self._modules
        self._is_unused = True  # whether it was asked for nothing yet
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._trial: int | None = None  # process ID

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # the first trial reports it
            self.prepare()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def supervisor_pid(self) -> int:
        """Process ID of the supervisor; 0 before it was started."""
        return 0 if self._supervisor is None else self._supervisor.pid

    def prepare(self) -> None:
        """Start the supervisor, unless it runs; raise OSError if the machine does not allow it."""
        check_not_in_trial()
        if self._supervisor is not None and self._supervisor.poll() is None:
            return
        self.close()
        self._has_imported, self._is_unused = not self._modules, True
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = ("-P", "-m", "autotune.child.supervisor", str(theirs.fileno()), str(os.getpid()))
            self._supervisor = subprocess.Popen(
                [sys.executable, *command],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._make_environment(),
                start_new_session=True,
            )

    def import_once(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Have the supervisor import installed libraries before the next trial, instead of each trial itself.

        Libraries may read variables of the environment, which the user's code has set before.
        """
        self._modules, self._environment, self._has_imported = tuple(modules), dict(environment or {}), not modules

    def _make_environment(self) -> dict[str, str]:
        """Return the environment of trials, with variables of torch that the user's code has set.

        Compile caches stay where training finds them.
        """
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container may run as a user without a name
            user = f"uid_{os.getuid()}"
        user = re.sub(r'[\\/:*?"<>|]', "_", user)  # as torch names the folder
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"torchinductor_{user}"))}
        threads = {"OMP_NUM_THREADS": "1"} if self._processes > 1 else {}  # as under torchrun
        own = select_torch_variables(self._environment)
        return {**caches, **threads, **os.environ, **own, TRIAL_VARIABLE: ""}

    def start(self, connection: int, working_dir: str) -> tuple[int, Path]:
        """Start the process of a trial, or raise OSError if the machine does not allow it.

        Args:
            connection: Descriptor of its socket.
            working_dir: Where it runs.

        Returns:
            Its pidfd, and its private temporary folder, whose file `.dltune-log` has its output.
        """
        self.prepare()
        if not self._has_imported and not self._import_modules():
            self.prepare()
        reply, received = self._ask({"start": str(Path(working_dir).resolve())}, (connection,))
        if "errno" in reply:
            raise OSError(reply["errno"], os.strerror(reply["errno"]), reply["path"])
        self._trial = reply["pid"]
        return received[0], Path(reply["folder"])

    def _import_modules(self) -> bool:
        """Return whether trials can be forked after the import; if not, end the supervisor, and import nothing more."""
        with contextlib.suppress(OSError):
            request = {"import": self._modules, "environment": self._environment}
            reply, _ = self._ask(request, seconds=MAX_REPLY_SECONDS + MAX_IMPORT_SECONDS)
            self._has_imported = reply["imported"]
        if not self._has_imported:
            self._modules = ()
            self.close()
        return self._has_imported

    def read_status(self) -> int | None:
        """Return the exit code of the trial's process, which has ended; that of a killed one if it is unknown."""
        try:
            status: int | None = self._ask({"status": self._trial})[0]["status"]
        except OSError:
            return -signal.SIGKILL
        return status

    def end_trial(self, seen: Iterable[int]) -> list[int]:
        """End the running trial with all its processes, of which some were `seen`; return those that still run."""
        try:
            survivors: list[int] = self._ask({"end": list(seen)})[0]["survivors"]
        except OSError:
            self.close()
            return []
        self._trial = None
        return survivors

    def _ask(
        self, request: dict[str, Any], descriptors: tuple[int, ...] = (), seconds: float = MAX_REPLY_SECONDS
    ) -> tuple[dict[str, Any], list[int]]:
        """Return the supervisor's reply; raise OSError if it does not reply."""
        if self._connection is None or self._supervisor is None:
            raise BrokenPipeError(errno.EPIPE, "the process that starts them has ended")
        self._is_unused = False  # a trial and an import may start processes
        try:
            socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)
            if not wait([self._connection], seconds):
                raise TimeoutError(errno.ETIMEDOUT, "the process that starts them does not reply")  # noqa: TRY301  # below
            message, received, _, _ = socket.recv_fds(self._connection, 2**16, 1)
            return dict(json.loads(message)), received  # an empty message is no JSON
        except (ConnectionError, ValueError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._supervisor.wait(MAX_END_SECONDS)
            status = self._supervisor.returncode
            happened = f"ended with status {status}"
            if status == -signal.SIGKILL:
                happened = "was killed, as the kernel does if memory runs out: allow more memory"
            raise BrokenPipeError(errno.EPIPE, f"the process that starts them {happened}") from None
        except BaseException:  # an interrupt, too: a late reply would be taken for that to the next request
            self.close()
            raise

    def close(self) -> None:
        """End the supervisor, and with it the running trial."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._supervisor is None:
            return
        if self._is_unused:  # it may still import torch, and has nothing to clean up
            self._supervisor.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(MAX_END_SECONDS)
        was_killed = self._supervisor.poll() != 0
        self._supervisor.kill()
        self._supervisor.wait()
        self._supervisor = None
        if was_killed and self._trial is not None:
            kill_session(self._trial)
        self._trial = None


def select_torch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torch may read when it is imported."""
    return {name: value for name, value in environment.items() if name.startswith("TORCH")}


def kill_session(session: int) -> None:
    """Kill the processes of a trial whose supervisor was killed; those that left its session are lost."""
    for pid in (int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit()):
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                signal_all(list_tree(pid), signal.SIGKILL)
