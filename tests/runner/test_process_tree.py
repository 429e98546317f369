"""Ending what carries a trial's id, also where Python or the kernel cannot hold on to a process's number."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from autotune.runner import process_tree
from autotune.runner.process_tree import TRIAL_ID_VARIABLE, describe_survivors, kill_trial


@pytest.fixture
def trial_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def marked(trial_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that carries the id and sleeps."""
    with start_sleeper({**os.environ, TRIAL_ID_VARIABLE: trial_id}) as process:
        yield process
        process.kill()


def start_sleeper(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    code = "import time; print(flush=True); time.sleep(3600)"
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # it runs, and its environment can be read
    return process


def refuse_to(number: int) -> Callable[..., NoReturn]:
    def refuse(*_arguments: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_trial_is_ended_where_python_was_built_without_pidfd_open(
    trial_id: str, marked: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(signal, "pidfd_send_signal")
    assert kill_trial(trial_id) == []
    assert marked.wait(timeout=5) == -signal.SIGKILL


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EMFILE])
@pytest.mark.parametrize("call", ["os.pidfd_open", "signal.pidfd_send_signal"])
def test_a_trial_is_ended_where_the_kernel_refuses_pidfds(
    call: str, number: int, trial_id: str, marked: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, refuse_to(number))
    assert kill_trial(trial_id) == []
    assert marked.wait(timeout=5) == -signal.SIGKILL


def test_without_pidfds_a_number_that_belongs_to_another_process_by_now_is_not_hit(
    trial_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with start_sleeper({**os.environ, TRIAL_ID_VARIABLE: "of another trial"}) as stranger:
        process_tree._signal(stranger.pid, trial_id, signal.SIGKILL)
        assert stranger.poll() is None
        stranger.kill()


def test_processes_that_cannot_be_ended_are_told_by_number_and_name(
    trial_id: str, marked: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "CLEANER_GRACE_SECONDS", 0.02)
    for call in ("signal.pidfd_send_signal", "os.kill"):
        monkeypatch.setattr(call, refuse_to(errno.EPERM))
    assert kill_trial(trial_id) == [marked.pid]
    words = describe_survivors([marked.pid])
    assert f"{marked.pid} (python" in words
    assert f"kill -9 {marked.pid}" in words
