"""Fixtures: a folder of one's own, and proof that a test left nothing behind."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

LEAVE_SECONDS = 5.0
SESSION = uuid.uuid4().hex  # inherited by every process that a test starts: others on this machine are not our business
os.environ["DLTUNE_TEST_SESSION"] = SESSION


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, so that .dltune/ and dltune.json land there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def list_leftovers() -> list[str]:
    """List processes of this session that carry a trial's mark, and torch's shared-memory names."""
    left = [path.name for path in Path("/dev/shm").glob("torch_*")]
    for process in psutil.process_iter():
        try:
            inherited = process.environ()
            is_ours = "DLTUNE_TRIAL" in inherited and inherited.get("DLTUNE_TEST_SESSION") == SESSION
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid} {process.name()}")
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return left


def await_nothing_left() -> list[str]:
    """Give processes and segments five seconds to vanish, and list what is still there."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while (left := list_leftovers()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Fail the test when processes or shared-memory names outlive it by more than five seconds."""
    yield
    assert await_nothing_left() == []
