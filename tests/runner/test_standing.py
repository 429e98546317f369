from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from autotune.runner.hangs import Frame, ask_where, read_stacks, write_stack
from autotune.trial.process_spec import STACK_SIGNAL, STACKS_FILE
from tests.faults.stage import await_condition

WRITTEN = """\
Thread 0x00007f1 [pin] (most recent call first):
  File "/lib/threading.py", line 320 in wait

Current thread 0x00007f2 (most recent call first):
  File "/data, or so.py", line 41 in __getitem__
  File "<string>", line 1 in <module>
"""
STANDS = """
import os, time
from autotune.child.stack_writing import answer_stack_requests

def stand_here():
    print("ready", flush=True)
    time.sleep(3600)

answer_stack_requests()
os.fork()
stand_here()
"""
pytestmark = pytest.mark.skipif(STACK_SIGNAL is None, reason="there are no such signals on this system")


def test_the_stacks_of_all_threads_are_read() -> None:
    assert list(read_stacks(WRITTEN)) == [
        (Frame("/lib/threading.py", 320, "wait"),),
        (Frame("/data, or so.py", 41, "__getitem__"), Frame("<string>", 1, "<module>")),
    ]


@pytest.mark.parametrize(
    "text", ["", "Fatal error", '  File "x.py", line 1 in f', "Thread 0x1 (most recent call first):"]
)
def test_what_holds_no_stack_gives_none(text: str) -> None:
    assert list(read_stacks(text)) == []


def test_a_stack_is_written_with_its_source_where_that_is_to_be_had(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("import cv2\ncv2.imread('x')\n")
    frames = [Frame(str(tmp_path / "data.py"), 2, "load"), Frame("<string>", 1, "<module>")]
    assert write_stack(frames) == [f"  {tmp_path}/data.py:2 in load: cv2.imread('x')", "  <string>:1 in <module>"]


@contextmanager
def start(code: str, folder: Path, lines: int) -> Iterator[subprocess.Popen[str]]:
    """Start Python code in a session of its own, wait until it has written so many lines, and end all of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    assert process.stdout is not None
    with process:
        try:
            for _ in range(lines):
                process.stdout.readline()
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def find_children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def sleeps(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_SLEEPING


def test_a_process_and_what_it_forked_say_where_they_stand(tmp_path: Path) -> None:
    with start(STANDS, tmp_path, lines=2) as process:
        pids = [process.pid, *find_children(process)]
        await_condition(lambda: all(map(sleeps, pids)), "both processes to sleep")
        found = ask_where(pids, tmp_path / STACKS_FILE)
        assert [one.pid for one in found] == sorted(pids)
        assert [[frame.function for frame in stack] for one in found for stack in one.threads] == [
            ["stand_here", "<module>"]
        ] * 2
        assert {one.state for one in found} == {"S"}
        assert process.poll() is None


def test_who_does_not_listen_is_not_asked_and_lives_on(tmp_path: Path) -> None:
    with start("print('ready', flush=True); import time; time.sleep(3600)", tmp_path, lines=1) as process:
        assert ask_where([process.pid, os.getpid(), 2**22 + 1], tmp_path / STACKS_FILE) == ()
        time.sleep(0.1)
        assert process.poll() is None


def test_a_process_that_does_not_answer_in_time_is_told_by_its_state(tmp_path: Path) -> None:
    with start(STANDS, tmp_path, lines=2) as process:
        os.kill(process.pid, signal.SIGSTOP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        (found,) = ask_where([process.pid], tmp_path / STACKS_FILE)
        assert found.threads == ()
        assert found.describe_state().startswith("state T")
