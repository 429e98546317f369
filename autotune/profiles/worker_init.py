"""What dltune does in a worker before its work begins; it imports nothing heavy, for every spawned worker imports it.

The sharing strategy is a global of the sending process. Forked workers inherit it; spawned ones start with
torch's default unless their `worker_init_fn` sets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autotune.config import ProcessSettings

SHARE_ATTRIBUTES: Final = (
    "id",
    "num_workers",
)  # of torch's WorkerInfo: what code looks at that takes one worker's share


@dataclass(frozen=True)
class WorkerSetup:
    """A `worker_init_fn` that sets the sharing strategy, then calls the user's own."""

    sharing_strategy: str
    then: Callable[[int], None] | None = None

    def __call__(self, worker_id: int) -> None:
        """Set up one worker."""
        from torch.multiprocessing import set_sharing_strategy

        set_sharing_strategy(self.sharing_strategy)
        if self.then is not None:
            self.then(worker_id)


def make_worker_init(
    process: ProcessSettings, then: Callable[[int], None] | None, *, are_forked: bool
) -> Callable[[int], None] | None:
    """Give the `worker_init_fn` of a configuration: the user's own where workers inherit what the parent has set."""
    return then if are_forked else WorkerSetup(process.sharing_strategy, then)


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
