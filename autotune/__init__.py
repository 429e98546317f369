"""dltune: finds the fastest DataLoader settings for your dataset, training step and machine.

Public names are imported on first use, so that importing the package imports neither torch nor optuna nor click.
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
    from autotune.online.attach import autopilot
    from autotune.online.watch import watch
    from autotune.profiles.device_prefetch import device_prefetch
    from autotune.profiles.export import Export, export
    from autotune.profiles.load import TunedLoader, load
    from autotune.profiles.schema import TunedFile, TunedProfile
    from autotune.profiles.shared_list import shared
    from autotune.request import TuningRequest, ValueRange, Workload, WorkloadRequest
    from autotune.tuning import TuningResult, tune

    __version__: str

__all__ = ["__version__", "autopilot", "check", "device_prefetch", "export", "load", "shared", "tune", "watch"]
__all__ += ["CheckResult", "Export", "LoaderConfig", "TunedFile", "TunedLoader", "TunedProfile", "TuningResult"]
__all__ += ["TuningRequest", "ValueRange", "Workload", "WorkloadRequest"]
__all__ += ["DltuneError", "NoFeasibleConfigError", "OutputError", "ProfileError", "ResultNotSavedError", "StudyError"]
__all__ += ["TrialError", "UsageError", "WorkloadError"]

_MODULES: Final = {
    "checking": ("CheckResult", "check"),
    "config": ("LoaderConfig",),
    "online.attach": ("autopilot",),
    "online.watch": ("watch",),
    "profiles.device_prefetch": ("device_prefetch",),
    "profiles.export": ("Export", "export"),
    "profiles.load": ("TunedLoader", "load"),
    "profiles.schema": ("TunedFile", "TunedProfile"),
    "profiles.shared_list": ("shared",),
    "request": ("TuningRequest", "ValueRange", "Workload", "WorkloadRequest"),
    "tuning": ("TuningResult", "tune"),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    if name == "__version__":
        from autotune.system.software import read_own_version

        return read_own_version()
    module = next((module for module, names in _MODULES.items() if name in names), "errors")
    return getattr(importlib.import_module(f"autotune.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
