"""What a launcher has started: of several processes of dltune, the first one tunes, and the others wait for its end."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from autotune.errors import UsageError
from autotune.system.own_folders import make_own_folder

LEADER: Final = "dltune/leader"  # its process number
END: Final = "dltune/exit_code"
HEARD: Final = "dltune/heard"
LOOK_SECONDS: Final = 0.2  # from one look for the end to the next
LAST_SECONDS: Final = 3.0  # for the others to hear of it, and for the one that failed to be gone before them
TORCHRUN_VARIABLES: Final = (
    *("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    "TORCHELASTIC_USE_AGENT_STORE",
)  # which its children are not to take for their own, nor these
SRUN_VARIABLES: Final = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True, slots=True)
class Launch:
    """One process of dltune among those that a launcher has started.

    Attributes:
        rank: Its number among all of them.
        size: How many there are.
        local_size: How many of them are on this host.
        environ: The variables that the launcher has set.
    """

    rank: int
    size: int
    local_size: int
    environ: Mapping[str, str]

    def wait(self) -> int:
        """Wait until the first one ends, and give its exit code; 1 where it is gone without a word."""
        try:
            code = self._hear(self._connect())
        except (RuntimeError, OSError):  # of torch's stores: what they were kept in is gone
            code = 1
        if code:
            time.sleep(LAST_SECONDS)  # a launcher reports the first process that fails, which is to be the one that did
        return code

    def _hear(self, store: Any) -> int:
        import psutil  # commands that wait for nobody, and the build of a wheel, do without

        while not store.check([END]):
            time.sleep(LOOK_SECONDS)
            if self._is_on_one_host and store.check([LEADER]) and not psutil.pid_exists(int(store.get(LEADER))):
                return 1
        store.add(HEARD, 1)
        return int(store.get(END))

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Tell the others how this process ends; its children are in none of the launcher's worlds."""
        store = self._connect()
        store.set(LEADER, str(os.getpid()))
        for name in (*TORCHRUN_VARIABLES, *SRUN_VARIABLES):
            os.environ.pop(name, None)
        code = 1
        try:
            yield
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            raise
        finally:
            self._tell(store, code)

    @property
    def _is_on_one_host(self) -> bool:
        return self.size == self.local_size

    @property
    def _keeps_store(self) -> bool:
        """Whether what they tell each other ends with this process."""
        has_port = "MASTER_PORT" in self.environ
        return has_port and self.rank == 0 and self.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def _tell(self, store: Any, code: int) -> None:
        store.set(END, str(code))
        deadline = time.monotonic() + LAST_SECONDS
        while self._keeps_store and store.add(HEARD, 0) < self.size - 1 and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def _connect(self) -> Any:
        """Meet the others where the launcher has them meet: at its store, or in a file of the job on this host."""
        import torch.distributed as dist

        if "MASTER_PORT" in self.environ:
            host, port = self.environ["MASTER_ADDR"], int(self.environ["MASTER_PORT"])
            keeps, patience = self._keeps_store, timedelta(minutes=5)
            return dist.TCPStore(host, port, self.size, keeps, timeout=patience, wait_for_workers=False)  # type: ignore[attr-defined]  # as below: torch does not list it
        folder = Path(tempfile.gettempdir()) / f"dltune-launch-{os.getuid()}"
        if not make_own_folder(folder):
            raise UsageError(f"{folder} belongs to somebody else: set TMPDIR to a folder of your own.")
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        job = "-".join(self.environ.get(name, "0") for name in names)
        return dist.FileStore(str(folder / job), self.size)  # type: ignore[attr-defined]


def read_launch(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Read whether torchrun or srun has started this process as one of several; None where it is alone.

    Raises:
        UsageError: srun has spread them over several nodes, which do not meet.
    """
    known = dict(environ)
    if "TORCHELASTIC_RUN_ID" in known:
        rank, size, local = (int(known[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    elif "SLURM_STEP_NUM_TASKS" in known and "SLURM_PROCID" in known:
        rank, size = int(known["SLURM_PROCID"]), int(known["SLURM_STEP_NUM_TASKS"])
        local = size
        if size > 1 and known.get("SLURM_STEP_NUM_NODES", "1") != "1":
            raise UsageError("srun has started dltune on several nodes: start it on one of each type, with srun -N 1.")
    else:
        return None
    return Launch(rank, size, local, known) if size > 1 else None


@contextmanager
def follow_launcher(ranks: int) -> Iterator[int]:
    """Give the number of training processes to tune for; where a launcher has started several, those on this host.

    All of them but the first wait here until that one has tuned, and exit as it does.
    """
    launch = read_launch()
    if launch is None:
        yield ranks
    elif launch.rank:
        sys.exit(launch.wait())
    else:
        with launch.leading():
            yield launch.local_size if ranks == 1 else ranks
