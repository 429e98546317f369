"""How a process of a trial is asked where it stands: by a signal, at which it appends its Python stacks to a file."""

from __future__ import annotations

import signal
import sys
from typing import Final

STACK_SIGNAL: Final = signal.SIGRTMIN + 10 if sys.platform == "linux" else None  # one that nobody else uses
STACKS_FILE: Final = "stacks"  # in the folder of the trial's temporary files
