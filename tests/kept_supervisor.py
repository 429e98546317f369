"""A supervisor that starts the trials of test after test: importing torch takes longer than most of what they do."""

from __future__ import annotations

import atexit
import os
from typing import Final

from autotune.runner.supervisor_client import SupervisorClient

LIBRARIES: Final = ("datasets", "lightning.pytorch", "torchdata.stateful_dataloader", "transformers.trainer")

_KEPT: Final[dict[str, SupervisorClient]] = {}


def keep_supervisor(*libraries: str) -> SupervisorClient:
    """Return the supervisor of this session, or another one if a test has changed the environment.

    It imports some libraries once for all trials: Lightning and transformers take longer than torch.
    """
    environment = repr(sorted(item for item in os.environ.items() if not item[0].startswith("PYTEST")))
    if environment not in _KEPT:
        _end_all()
        _KEPT[environment] = SupervisorClient()
    if libraries:
        _KEPT[environment].import_once(libraries)
    return _KEPT[environment]


@atexit.register
def _end_all() -> None:
    while _KEPT:
        _KEPT.popitem()[1].close()


def list_kept() -> list[int]:
    """List the processes that no test has to end."""
    return [client.supervisor_pid for client in _KEPT.values()]
