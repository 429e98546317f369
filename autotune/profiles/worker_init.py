"""What dltune does in a worker before its work begins; it imports nothing heavy, for every spawned worker imports it.

The sharing strategy is a global of the sending process. Forked workers inherit it; spawned ones start with
torch's default unless their `worker_init_fn` sets it. torch computes on one thread in a worker; other libraries start
as many as there are CPUs in each of them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.system.environment import THREAD_VARIABLES

if TYPE_CHECKING:
    from autotune.config import ProcessSettings

SHARE_ATTRIBUTES: Final = (
    "id",
    "num_workers",
)  # of torch's WorkerInfo: what code looks at that takes one worker's share
THREAD_SETTERS: Final = {
    "cv2": "setNumThreads",
    "mkl": "set_num_threads",
    "numexpr": "set_num_threads",
    "torch": "set_num_threads",
    "threadpoolctl": "threadpool_limits",
}  # functions of modules, where those have been imported


@dataclass(frozen=True)
class WorkerSetup:
    """A `worker_init_fn` that sets the sharing strategy and limits threads, then calls the user's own."""

    sharing_strategy: str
    then: Callable[[int], None] | None = None
    threads: int | None = None  # of each library; None leaves them as they are

    def __call__(self, worker_id: int) -> None:
        """Set up one worker."""
        from torch.multiprocessing import set_sharing_strategy

        set_sharing_strategy(self.sharing_strategy)
        if self.threads is not None:
            limit_threads(self.threads)
        if self.then is not None:
            self.then(worker_id)


def limit_threads(threads: int) -> None:
    """Let libraries use so many threads each in this process, as far as they can be told."""
    os.environ |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    if threads == 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with contextlib.suppress(ImportError):
        importlib.import_module("threadpoolctl")  # which can tell more of them; it comes with scikit-learn
    for module, setter in THREAD_SETTERS.items():
        if module in sys.modules:
            getattr(sys.modules[module], setter)(threads)


def make_worker_init(
    process: ProcessSettings, then: Callable[[int], None] | None, *, are_forked: bool
) -> Callable[[int], None] | None:
    """Give the `worker_init_fn` of a configuration: the user's own where workers inherit all that is to be set."""
    if are_forked and process.worker_threads is None:
        return then
    return WorkerSetup(process.sharing_strategy, then, process.worker_threads)


@dataclass(frozen=True)
class ShareWatch:
    """A `worker_init_fn` that makes the file `note` once code asks which worker it is in, and calls the user's own."""

    note: str
    then: Callable[[int], None] | None = None

    def __call__(self, worker_id: int) -> None:
        """Watch one worker."""
        from torch.utils.data import get_worker_info

        note = Path(self.note)

        def read(info: Any, name: str) -> Any:
            if name in SHARE_ATTRIBUTES:
                note.touch()
            return object.__getattribute__(info, name)

        type.__setattr__(type(get_worker_info()), "__getattribute__", read)  # of this process alone, which is a worker
        if self.then is not None:
            self.then(worker_id)
