"""The versions at hand, read without importing torch: that takes seconds, and a check is asked for before every job."""

from __future__ import annotations

import multiprocessing
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple, cast

from autotune.config import StartMethod
from autotune.system.kernel_files import read_text

_ASSIGNMENT: Final = re.compile(r"^(__version__|cuda)\b[^=\n]*= *'([^'\n]+)'$", re.MULTILINE)


class TorchVersion(NamedTuple):
    """A build of torch."""

    version: str  # such as `2.13.0+cu130`
    cuda: str | None  # the version of CUDA that it was built for; None for a build without


def read_torch(folder: Path | None = None) -> TorchVersion | None:
    """Read which build of torch would be imported, or lies in a folder; None where there is none.

    Its own file is read, for a wheel's metadata know neither CUDA nor, from PyPI, the build.
    """
    folder = folder or _find_torch()
    words = dict(_ASSIGNMENT.findall(read_text(folder / "version.py"))) if folder is not None else {}
    if "__version__" in words:
        return TorchVersion(words["__version__"], words.get("cuda"))
    installed = _read_metadata("torch")
    return None if installed is None else TorchVersion(installed, None)


def _find_torch() -> Path | None:
    spec = find_spec("torch")
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) if places else None


def read_own_version() -> str:
    """Read dltune's version; one that runs from its sources alone does not know it."""
    return _read_metadata("dltune") or "unknown"


def _read_metadata(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # a tenth of what loading a profile takes

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def read_start_method() -> StartMethod:
    """Read how this Python starts worker processes when nobody says otherwise; asking decides nothing."""
    return cast("StartMethod", multiprocessing.get_all_start_methods()[0])


def read_start_method_in_force() -> StartMethod:
    """Read how this process starts its workers: as somebody chose, or by the default; asking decides nothing.

    `multiprocessing.get_start_method()` does decide: whoever chooses another method afterwards gets a RuntimeError.
    """
    chosen = multiprocessing.get_start_method(allow_none=True)
    return read_start_method() if chosen is None else cast("StartMethod", chosen)
