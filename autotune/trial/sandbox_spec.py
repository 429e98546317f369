"""What of a sandbox a trial's process is to put up around itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

SANDBOX_ERROR_PREFIX: Final = "isolation: "  # how a child says on stderr that its sandbox could not be set up


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
