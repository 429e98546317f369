"""Asks an interpreter that has imported nothing yet, and that leaves nothing in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def ask_fresh_interpreter(code: str, *arguments: str, timeout_seconds: float) -> Any:
    """Run code in a fresh interpreter, and give what its last line says in JSON; None where it fails or takes longer.

    It finds in `sys.argv` where this one imports from, as JSON, and then the arguments.
    """
    command = [sys.executable, "-c", code, json.dumps(sys.path), *arguments]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_seconds)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
