"""What the tuner and its child process agree on before either imports more than the standard library.

The sandbox that the child puts up around itself; and the signal at which a process appends its Python stacks to a file.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Final

SANDBOX_ERROR_PREFIX: Final = "isolation: "  # how a child says on stderr that its sandbox could not be set up
STACK_SIGNAL: Final = signal.SIGRTMIN + 10 if sys.platform == "linux" else None  # one that nobody else uses
STACKS_FILE: Final = "stacks"  # in the folder of the trial's temporary files


@dataclass(frozen=True)
class SandboxSpec:
    """What to put up.

    Attributes:
        cgroup: Folder of the cgroup to join; None to stay where we are.
        shm_bytes: Size of a private /dev/shm; 0 to use the one that is there.
        shm_names: Most names in it.
        own_pids: Whether processes get a namespace; needs a private /dev/shm, whose names carry process numbers.
    """

    cgroup: str | None = None
    shm_bytes: int = 0
    shm_names: int = 0
    own_pids: bool = False

    def to_json(self) -> str:
        """Write as an argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SandboxSpec:
        """Read such an argument."""
        return cls(**json.loads(text))
