"""What this machine allows a test: to mount a file system of its own, or to limit the memory of a cgroup."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])  # as root, and as anybody
EMPTY_SECONDS = 10.0


def explain_lack(need: str | None) -> str | None:
    """Return why this machine lacks what a test needs (`mount` or `cgroup`), or None."""
    if need == "mount":
        return None if find_namespace() else "no mount namespace, neither as root nor in a user namespace"
    if need == "cgroup":
        return None if find_memory_cgroup() else "no memory cgroup that can be written"
    assert need is None
    return None


@cache
def find_namespace() -> list[str]:
    """Find the command that may mount file systems; empty if there is none."""
    for command in NAMESPACES:
        with suppress(OSError):
            mount = [*command, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
            if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
                return command
    return []


def wrap_in_mount(options: str, command: Sequence[str], folder: str = "/dev/shm") -> list[str]:
    """Return the command that runs another one with a tmpfs, of these mount options, in place of a folder."""
    script = f'mount -t tmpfs -o {options} tmpfs {folder} && exec "$@"'
    return [*find_namespace(), "sh", "-c", script, "sh", *command]


@cache
def find_memory_cgroup() -> Path | None:
    """Find the memory cgroup, of version 1 or 2, under which a test may make its own."""
    for parent in _list_candidates():
        folder = parent / f"dltune-try-{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            try:
                _write_limit(folder, 2**30)
                return parent
            except OSError:
                continue
            finally:
                folder.rmdir()
    return None


def _list_candidates() -> Iterator[Path]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield CGROUP / "memory" / path.lstrip("/")
        elif not controllers:
            yield CGROUP / path.lstrip("/")
            yield (CGROUP / path.lstrip("/")).parent  # of version 2, a group with processes hands nothing down


def _write_limit(folder: Path, limit_bytes: int) -> None:
    name = "memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes"
    (folder / name).write_text(str(limit_bytes))


@contextmanager
def open_cgroup(limit_bytes: int) -> Iterator[list[str]]:
    """Make a memory cgroup with this limit, and yield the words that run a command in it."""
    parent = find_memory_cgroup()
    assert parent is not None
    folder = parent / f"test-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        _write_limit(folder, limit_bytes)
        yield ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        deadline = time.monotonic() + EMPTY_SECONDS
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:  # its processes have not all ended
                assert time.monotonic() < deadline
                time.sleep(0.05)
