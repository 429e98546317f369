"""dltune: measures which DataLoader settings feed a training step fastest, and loads them again.

Importing this package costs next to nothing: no torch, no optuna, no click. What is public is imported when
it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autotune.checking import CheckResult, check
    from autotune.config import LoaderConfig
    from autotune.errors import (
        DltuneError,
        NoFeasibleConfigError,
        OutputError,
        ProfileError,
        ResultNotSavedError,
        StudyError,
        TrialError,
        UsageError,
        WorkloadError,
    )
    from autotune.profiles.device_prefetch import device_prefetch
    from autotune.profiles.export import Export, export
    from autotune.profiles.load import TunedLoader, load
    from autotune.profiles.schema import TunedFile, TunedProfile
    from autotune.profiles.shared_list import shared
    from autotune.request import TuningRequest, WorkloadRequest
    from autotune.tuning import TuningResult, tune
    from autotune.workload import Workload

    __version__: str

__all__ = [
    "CheckResult",
    "DltuneError",
    "Export",
    "LoaderConfig",
    "NoFeasibleConfigError",
    "OutputError",
    "ProfileError",
    "ResultNotSavedError",
    "StudyError",
    "TrialError",
    "TunedFile",
    "TunedLoader",
    "TunedProfile",
    "TuningRequest",
    "TuningResult",
    "UsageError",
    "Workload",
    "WorkloadError",
    "WorkloadRequest",
    "__version__",
    "check",
    "device_prefetch",
    "export",
    "load",
    "shared",
    "tune",
]

_HOMES: Final = {
    "CheckResult": "checking",
    "Export": "profiles.export",
    "LoaderConfig": "config",
    "TunedFile": "profiles.schema",
    "TunedLoader": "profiles.load",
    "TunedProfile": "profiles.schema",
    "TuningRequest": "request",
    "TuningResult": "tuning",
    "Workload": "workload",
    "WorkloadRequest": "request",
    "check": "checking",
    "device_prefetch": "profiles.device_prefetch",
    "export": "profiles.export",
    "load": "profiles.load",
    "shared": "profiles.shared_list",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    if name == "__version__":
        from autotune.system.software import read_own_version

        found: Any = read_own_version()
    else:
        found = getattr(importlib.import_module(f"autotune.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
