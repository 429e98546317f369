"""What to do about a module that the user's code imports and that was not found."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from autotune.scripts.places import find_module

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
