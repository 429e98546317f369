"""Explains why a workload could not be loaded or profiled."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from autotune.errors import UsageError, WorkloadError
from autotune.protocol.messages import FailureReport, Report
from autotune.request import WorkloadRequest
from autotune.runner.diagnosis import TrialFailure, advice_for
from autotune.system.code_places import find_module
from autotune.units import format_seconds

EXIT_HINT: Final = (
    "\nSomething called sys.exit(): code at the top of a module that reads sys.argv, perhaps. "
    'Guard it with if __name__ == "__main__".'
)
_ADVICE: Final = {
    "timed_out": " If it needs longer, allow it with --stall-time.",
    "out_of_memory": " Give it more with --max-memory, or make the dataset smaller.",
}
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_PACKAGES: Final = {  # that are installed by another name than they are imported by
    "PIL": "pillow",
    "attr": "attrs",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "pl_bolts": "lightning-bolts",
    "pytorch_lightning": "pytorch-lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "streaming": "mosaicml-streaming",
    "torch_geometric": "torch-geometric",
    "yaml": "pyyaml",
}


def start_error(answer: Report | TrialFailure, workload: WorkloadRequest) -> UsageError | WorkloadError:
    """Say why the workload could not be loaded or profiled."""
    if isinstance(answer, FailureReport):
        return _explain_failure(answer, workload)
    if not isinstance(answer, TrialFailure):
        return WorkloadError(f"{workload.dataset}: its process answered out of turn ({type(answer).__name__}).")
    source = f"While {workload.dataset} was loaded and profiled, its process"
    return WorkloadError(f"{source} {answer.message}.{_ADVICE.get(answer.kind, '')}", answer.details)


def timeout_error(seconds: float, workload: WorkloadRequest) -> UsageError:
    """Say that --timeout left too little."""
    return UsageError(
        f"Nothing could be tried: {workload.dataset} was not loaded and profiled after the {format_seconds(seconds)} "
        "that --timeout had left for it. Allow more time."
    )


def _explain_failure(failed: FailureReport, workload: WorkloadRequest) -> UsageError | WorkloadError:
    missing = advise_on_missing_module(failed.error, Path(workload.working_dir))
    words = "\n".join(filter(None, (failed.error, missing or advice_for(failed.error))))
    kind, _, text = words.partition(": ")
    for ours in (UsageError, WorkloadError):
        if kind.rpartition(".")[2] == ours.__name__:
            return ours(text)
    if failed.where == "running step":
        source = f"The training step ({workload.describe_step()}) failed on a batch"
        return WorkloadError(f"{source}: {words}", failed.details)
    sources = {"step": f"The step factory {workload.step}", "dataset": f"The dataset factory {workload.dataset}"}
    usual = f"Loading the first batches of {workload.dataset} in the training process"
    hint = EXIT_HINT if kind == "SystemExit" else ""
    return WorkloadError(f"{sources.get(failed.where, usual)} failed: {words}{hint}", failed.details)


def advise_on_missing_module(error: str, folder: Path) -> str:
    """Say where the module lies below a folder, or how it is installed; empty where the error is another one."""
    missing = _MISSING.search(error)
    if missing is None:
        return ""
    found = find_module(missing[1], folder)
    if found is None:
        root = missing[1].partition(".")[0]
        return (
            f"A package is installed for the Python that runs dltune by {sys.executable} -m pip install "
            f"{_PACKAGES.get(root, root)}; a file of yours is found with its folder in PYTHONPATH."
        )
    place = found.parents[missing[1].count(".") + (found.name == "__init__.py")]
    return (
        f"There is {found}, which is found from {place}: set PYTHONPATH={place}, or name a script by its path "
        "(FILE.py:NAME), which finds what lies beside it."
    )
