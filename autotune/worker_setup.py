"""Carries the sharing strategy into workers that do not inherit it.

The strategy is a global of the sending process. Forked workers inherit it; spawned ones start with
torch's default unless their `worker_init_fn` sets it. This module imports nothing heavy: every spawned
worker imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
