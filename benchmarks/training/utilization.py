"""How busy is a GPU while a run goes on?"""

from __future__ import annotations

import threading
from typing import Any, Final, Self

from autotune.system.gpus import open_nvml, read_gpu_state

SAMPLE_SECONDS: Final = 0.1  # between two looks at the device


class Utilization:
    """Asks NVML ten times a second, in a thread of its own; `shares` holds what it said."""

    def __init__(self, uuid: str | None, library: Any = None) -> None:
        self.shares: list[float] = []
        self._uuid = uuid
        self._library = library
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self._uuid is not None:
            self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        with open_nvml(self._library) as library:  # kept open: opening it takes far longer than asking
            while library is not None and not self._over.wait(SAMPLE_SECONDS):
                state = read_gpu_state(self._uuid or "", library)
                if state is None or state.utilization is None:
                    return
                self.shares.append(state.utilization)
