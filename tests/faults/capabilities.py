"""What this machine lets a test do to itself: mount a file system of its own, limit the memory of a cgroup."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])  # as root, and as anybody
EMPTY_SECONDS = 10.0


def explain_lack(need: str) -> str | None:
    """Say why this machine cannot give a test what it needs; None when it can."""
    if need == "mount":
        return None if find_namespace() else "no mount namespace, neither as root nor in a user namespace"
    if need == "cgroup":
        return None if find_memory_cgroup() else "no memory cgroup that can be written"
    assert need == "plain", f"a fault test needs plain, mount or cgroup, not {need!r}"
    return None


@lru_cache(maxsize=1)
def find_namespace() -> tuple[str, ...]:
    """Find the command that may mount file systems; empty where there is none."""
    for command in NAMESPACES:
        with contextlib.suppress(OSError):
            probe = subprocess.run(wrap_in_shm("size=1m", ["true"], command), capture_output=True, check=False)
            if probe.returncode == 0:
                return tuple(command)
    return ()


def wrap_in_shm(options: str, command: Sequence[str], namespace: Sequence[str] | None = None) -> list[str]:
    """Give the command that runs another one with a /dev/shm of its own.

    Args:
        options: Mount options of the tmpfs, as in `size=8m`.
        command: What to run.
        namespace: What makes the mount namespace; None for the one that works here.
    """
    script = f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"'
    return [*(find_namespace() if namespace is None else namespace), "sh", "-c", script, "sh", *command]


@lru_cache(maxsize=1)
def find_memory_cgroup() -> Path | None:
    """Find the memory cgroup, of version 1 or 2, under which a test may make its own."""
    for parent in _list_candidates():
        folder = parent / f"dltune-try-{os.getpid()}"
        with contextlib.suppress(OSError):
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
    """Make a memory cgroup, and give the words to put before a command that shall run in it.

    Args:
        limit_bytes: Most memory of all its processes.
    """
    parent = find_memory_cgroup()
    assert parent is not None
    folder = parent / f"test-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        _write_limit(folder, limit_bytes)
        yield ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + EMPTY_SECONDS
    while True:
        try:
            for inner in (path for path in folder.iterdir() if path.is_dir()):
                inner.rmdir()
            folder.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
