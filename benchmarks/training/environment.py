"""In which environment can this project's modules be imported from any folder?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = str(Path(__file__).parent.parent.parent)


def make_environment() -> dict[str, str]:
    """Give the environment of a process that is started elsewhere."""
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, inherited] if inherited else [ROOT])}
