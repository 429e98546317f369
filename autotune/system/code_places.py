"""Is a line of code the user's own, or a library's?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOTS: Final = (str(Path(os.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep)  # Python's, dltune's
INSTALLED: Final = ("site-packages", "dist-packages")  # folders


def is_library(file: str) -> bool:
    """Tell whether a file of Python code belongs to the interpreter, to an installed package, or to dltune."""
    return file.startswith(("<", *ROOTS)) or not set(INSTALLED).isdisjoint(Path(file).parts)
