"""dltune: measures which DataLoader settings feed a training step fastest, and loads them again.

Importing this package costs next to nothing: no torch, no optuna, no click. What is public is imported when
it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autotune.confirm.profile_builder import TuningResult
    from autotune.errors import DltuneError
    from autotune.profiles.device_prefetch import device_prefetch
    from autotune.profiles.export import Export, export
    from autotune.profiles.load import TunedLoader, load
    from autotune.profiles.schema import TunedFile, TunedProfile
    from autotune.request import TuningRequest, WorkloadRequest
    from autotune.tuning import tune
    from autotune.workload import Workload

__all__ = [
    "DltuneError",
    "Export",
    "TunedFile",
    "TunedLoader",
    "TunedProfile",
    "TuningRequest",
    "TuningResult",
    "Workload",
    "WorkloadRequest",
    "device_prefetch",
    "export",
    "load",
    "tune",
]

_HOMES: Final = {
    "DltuneError": "autotune.errors",
    "Export": "autotune.profiles.export",
    "TuningResult": "autotune.confirm.profile_builder",
    "TunedProfile": "autotune.profiles.schema",
    "TunedFile": "autotune.profiles.schema",
    "TunedLoader": "autotune.profiles.load",
    "TuningRequest": "autotune.request",
    "Workload": "autotune.workload",
    "WorkloadRequest": "autotune.request",
    "device_prefetch": "autotune.profiles.device_prefetch",
    "export": "autotune.profiles.export",
    "load": "autotune.profiles.load",
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
