"""Versions, start method, environment and code of training, read without importing torch, which takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from autotune.errors import UsageError
from autotune.system.procfs import read_text

if TYPE_CHECKING:  # every worker imports this module, and none needs pydantic
    from autotune.config import StartMethod
    from autotune.system.machine import Software

THREAD_VARIABLES: Final = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"),
    *("RAYON_NUM_THREADS", "POLARS_MAX_THREADS", "BLOSC_NTHREADS"),
)  # most libraries read them on first use
RANKS: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
LOCAL_RANKS: Final = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK")
ROOTS: Final = (str(Path(os.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep)  # Python's, dltune's
INSTALLED: Final = {"site-packages", "dist-packages"}
MAX_TMPDIR_BYTES: Final = 73  # workers hang above: names of sockets, of at most 107, have 32 more, or 34 (file_system)
_ASSIGNMENT: Final = re.compile(r"^(__version__|cuda)\b[^=\n]*= *'([^'\n]+)'$", re.MULTILINE)


def find_tmpdir() -> str:
    """Return the folder for temporary files; empty if none is writable."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return ""


class TorchVersion(NamedTuple):
    """A build of torch: its version, such as `2.13.0+cu130`, and the version of CUDA that it was built with."""

    version: str
    cuda: str | None


def read_torch(folder: Path | None = None) -> TorchVersion | None:
    """Read `version.py` of the torch that would be imported, or is in a folder; None if there is none."""
    if folder is None and (spec := find_spec("torch")) is not None and spec.origin:
        folder = Path(spec.origin).parent
    values = dict(_ASSIGNMENT.findall(read_text(folder / "version.py"))) if folder is not None else {}
    return TorchVersion(values["__version__"], values.get("cuda")) if "__version__" in values else None


def read_own_version() -> str:
    """Return dltune's version; `unknown` if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # a tenth of the time to load a profile

    try:
        return version("dltune")
    except PackageNotFoundError:
        return "unknown"


def read_software() -> Software:
    """Return the versions that this process runs with, and how it starts workers.

    Raises:
        UsageError: torch is not installed.
    """
    from autotune.system.machine import Software

    if (torch := read_torch()) is None:
        raise UsageError("torch is not installed here. Install it first.")
    return Software(
        dltune=read_own_version(),
        torch=torch.version,
        cuda=torch.cuda,
        python=platform.python_version(),
        start_method=read_start_method_in_force(),
    )


def read_start_method_in_force() -> StartMethod:
    """Return the start method of this process without fixing it, as `multiprocessing.get_start_method()` does."""
    chosen = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return cast("StartMethod", chosen)


def inherits_imports(start_method: str) -> bool:
    """Return whether workers start with the imports of the main script, which Python 3.14's fork server imports."""
    main = sys.modules["__main__"]
    is_script = getattr(main, "__spec__", None) is None and hasattr(main, "__file__")  # no module, and no notebook
    return start_method == "fork" or (start_method == "forkserver" and sys.version_info >= (3, 14) and is_script)


def read_local_world_size(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of training processes on this host, as torchrun, mpirun, deepspeed or srun sets it; else 1.

    Lightning sets only the number on all hosts, and in rank 0 not before `fit`.
    """
    steps = environ.get("SLURM_STEP_TASKS_PER_NODE", "")  # such as `8(x2),4`; other variables of Slurm are of the job
    on_nodes = re.sub(r"(\d+)\(x(\d+)\)", lambda found: ",".join([found[1]] * int(found[2])), steps).split(",")
    node = environ.get("SLURM_NODEID", "")
    of_slurm = on_nodes[int(node) if node.isdecimal() else 0 :][:1]
    deepspeed, lightning = (environ.get(name, "") * ("LOCAL_RANK" in environ) for name in ("LOCAL_SIZE", "WORLD_SIZE"))
    texts = (*(environ.get(name, "") for name in RANKS), deepspeed, *of_slurm, lightning)
    return max(1, next((int(text) for text in texts if text.isdecimal()), 1))


def read_local_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return the index of this training process on this host, as its launcher sets it; 0 without one."""
    texts = (environ.get(name, "") for name in (*LOCAL_RANKS, "SLURM_LOCALID"))
    return next((int(text) for text in texts if text.isdecimal()), 0)


def list_libraries() -> Iterator[str]:
    """Yield the modules of installed packages that this process has imported, without the deepest.

    Some compiled modules are there a second time, by a name that cannot be imported: scipy has a `_csparsetools`.
    """
    for name, module in list(sys.modules.items()):
        with suppress(Exception):  # an object of a type of its own
            spec = module.__spec__
            if spec and spec.name == name and name.count(".") < 2 and spec.origin and _is_installed(spec.origin):
                yield name


def is_library(file: str) -> bool:
    """Return whether a file of Python code belongs to the interpreter, to an installed package, or to dltune."""
    return file.startswith(("<", *ROOTS)) or _is_installed(file)


def is_stdlib(file: str) -> bool:
    """Return whether a file of Python code belongs to the interpreter."""
    return file.startswith(("<", ROOTS[0])) and not _is_installed(file)


def _is_installed(file: str) -> bool:
    return not INSTALLED.isdisjoint(Path(file).parts)
