"""dltune: measures which DataLoader settings feed a training step fastest, and loads them again.

Importing this package costs next to nothing: no torch, no optuna, no click. What is public is imported when
it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autotune.errors import DltuneError
    from autotune.exporting import Export, export
    from autotune.outcome import Outcome
    from autotune.prefetching import device_prefetch
    from autotune.profiles import TunedLoader, load
    from autotune.request import TuningRequest, WorkloadRequest
    from autotune.schema import TunedConfig, TunedFile
    from autotune.tuning import tune
    from autotune.workload import Workload

__all__ = [
    "DltuneError",
    "Export",
    "Outcome",
    "TunedConfig",
    "TunedFile",
    "TunedLoader",
    "TuningRequest",
    "Workload",
    "WorkloadRequest",
    "device_prefetch",
    "export",
    "load",
    "tune",
]

_HOMES: Final = {
    "DltuneError": "autotune.errors",
    "Export": "autotune.exporting",
    "Outcome": "autotune.outcome",
    "TunedConfig": "autotune.schema",
    "TunedFile": "autotune.schema",
    "TunedLoader": "autotune.profiles",
    "TuningRequest": "autotune.request",
    "Workload": "autotune.workload",
    "WorkloadRequest": "autotune.request",
    "device_prefetch": "autotune.prefetching",
    "export": "autotune.exporting",
    "load": "autotune.profiles",
    "tune": "autotune.tuning",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
