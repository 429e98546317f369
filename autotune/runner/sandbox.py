"""Finds out which parts of a sandbox this machine allows around a trial; where it allows none, a trial runs plainly.

A plain trial is still watched, found by its id in its processes' environment and kept together by its keeper, and
ended as a whole. The sandbox adds what watching cannot: exact numbers, limits that the kernel holds, and an end that
nothing escapes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from autotune.protocol.budgets import Budgets
from autotune.protocol.process_spec import SandboxSpec
from autotune.runner.memory_cgroup import MemoryCgroup, find_cgroup_parent
from autotune.system.processes import SHM

KERNEL_LIMIT_FACTOR: Final = 1.04  # of a budget: the kernel stops what the watchdog, at the budget, has not ended yet
PROBE_SECONDS: Final = 10.0
PROBE_SHM_BYTES: Final = 2**20
PROBE_SHM_NAMES: Final = 64
TORCH_SHM_NAMES: Final = re.compile(r"torch_|sem\.")  # names in /dev/shm that no dataset reads


@dataclass(frozen=True, slots=True)
class SandboxSupport:
    """The parts of a sandbox that this machine allows.

    Attributes:
        own_shm: Whether a trial can have a /dev/shm of its own.
        own_pids: Whether it can have process numbers of its own.
        cgroup: Where it can have a memory cgroup; None where it cannot.
        missing: For each part that it cannot have, why.
    """

    own_shm: bool = False
    own_pids: bool = False
    cgroup: Path | None = None
    missing: tuple[str, ...] = ()

    def make_cgroup(self, budgets: Budgets) -> MemoryCgroup | None:
        """Make a trial's memory cgroup, where that is possible."""
        if self.cgroup is None:
            return None
        try:
            return MemoryCgroup.make(self.cgroup, int(budgets.memory_bytes * KERNEL_LIMIT_FACTOR))
        except OSError:
            return None

    def make_spec(self, budgets: Budgets, cgroup: MemoryCgroup | None) -> SandboxSpec:
        """Say what a trial's first process is to put up."""
        folder = str(cgroup.folder) if cgroup is not None else None
        if not self.own_shm or not budgets.shm_bytes:
            return SandboxSpec(cgroup=folder)
        names = os.statvfs(SHM).f_files
        return SandboxSpec(folder, int(budgets.shm_bytes * KERNEL_LIMIT_FACTOR), names, self.own_pids)


@lru_cache(maxsize=1)
def detect_sandbox() -> SandboxSupport:
    """Try, in a process of its own and once, which parts of a sandbox work."""
    cgroup = find_cgroup_parent()
    missing = [] if cgroup is not None else ["memory cgroup: none that this user may write"]
    shm_problem = _find_shm_problem()
    both_problem = shm_problem or _try(SandboxSpec(None, PROBE_SHM_BYTES, PROBE_SHM_NAMES, own_pids=True))
    if both_problem is None:
        return SandboxSupport(own_shm=True, own_pids=True, cgroup=cgroup, missing=tuple(missing))
    missing.append(f"process namespace: {both_problem}")
    shm_problem = shm_problem or _try(SandboxSpec(None, PROBE_SHM_BYTES, PROBE_SHM_NAMES))
    if shm_problem is not None:
        missing.append(f"private /dev/shm: {shm_problem}")
    return SandboxSupport(own_shm=shm_problem is None, cgroup=cgroup, missing=tuple(missing))


def _find_shm_problem(shm: Path = SHM) -> str | None:
    """Tell why a private /dev/shm would hide something, or make possible what training cannot do."""
    if sys.platform != "linux":
        return "this is not Linux"
    try:
        strangers = [path.name for path in shm.iterdir() if not TORCH_SHM_NAMES.match(path.name)]
    except OSError as error:
        return f"{shm}: {error.strerror}"
    if strangers:
        return f"{shm} holds what a dataset may want to read ({strangers[0]})"
    return None if os.access(shm, os.W_OK) else f"{shm} is read-only"


def _try(spec: SandboxSpec) -> str | None:
    """Enter a sandbox in a process of its own; give the reason why it failed, or None."""
    command = [sys.executable, "-P", "-m", "autotune.child.namespaces", spec.to_json()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
