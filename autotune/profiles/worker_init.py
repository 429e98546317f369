"""What dltune does in a worker before its work begins.

A worker that does not inherit the sharing strategy is told it, and one whose dataset is being looked at notes what that
asks for.

The strategy is a global of the sending process. Forked workers inherit it; spawned ones start with
torch's default unless their `worker_init_fn` sets it. This module imports nothing heavy: every spawned
worker imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SHARES: Final = ("id", "num_workers")  # of torch's WorkerInfo: what code looks at that takes one worker's share


@dataclass(frozen=True)
class WorkerSetup:
    """A `worker_init_fn` that sets the sharing strategy, then calls the user's own.

    Attributes:
        sharing_strategy: Argument of `torch.multiprocessing.set_sharing_strategy`.
        then: The user's `worker_init_fn`, called afterwards.
    """

    sharing_strategy: str
    then: Callable[[int], None] | None = None

    def __call__(self, worker_id: int) -> None:
        """Set up one worker.

        Args:
            worker_id: Number of the worker, from 0.
        """
        from torch.multiprocessing import set_sharing_strategy

        set_sharing_strategy(self.sharing_strategy)
        if self.then is not None:
            self.then(worker_id)


@dataclass(frozen=True)
class ShareWatch:
    """A `worker_init_fn` that leaves a note once any code asks which worker it runs in; then it calls the user's own.

    Attributes:
        note: Path of a file that is made then.
        then: The user's `worker_init_fn`, called afterwards.
    """

    note: str
    then: Callable[[int], None] | None = None

    def __call__(self, worker_id: int) -> None:
        """Watch one worker.

        Args:
            worker_id: Number of the worker, from 0.
        """
        from torch.utils.data import get_worker_info

        note = Path(self.note)

        def read(info: Any, name: str) -> Any:
            if name in SHARES:
                note.touch()
            return object.__getattribute__(info, name)

        type.__setattr__(type(get_worker_info()), "__getattribute__", read)  # of this process alone, which is a worker
        if self.then is not None:
            self.then(worker_id)
