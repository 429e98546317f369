from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary as Frame

import psutil
import pytest

from autotune.runner.hangs import (
    COMPUTES,
    DEADLOCK,
    FORKED_LOCK,
    WAITS_FOR_DISK,
    ProcessStacks,
    Stack,
    find_blocking,
    read_all_stacks,
    read_stacks,
    write_stack,
)
from autotune.system.procfs import STACKS_FILE, TRIAL_VARIABLE
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
from autotune.child.errors import dump_stacks_on_signal

def stand_here():
    print("ready", flush=True)
    time.sleep(3600)

dump_stacks_on_signal()
os.fork()
stand_here()
"""


def test_the_stacks_of_all_threads_are_read() -> None:
    assert list(read_stacks(WRITTEN)) == [
        (Frame("/lib/threading.py", 320, "wait"),),
        (Frame("/data, or so.py", 41, "__getitem__"), Frame("<string>", 1, "<module>")),
    ]


@pytest.mark.parametrize("text", ["", "Fatal error", '  File "x.py", line 1 in f', "Thread 0x1 (most recent call):"])
def test_a_text_without_a_stack_is_read_as_none(text: str) -> None:
    assert list(read_stacks(text)) == []


def test_a_stack_is_written_with_its_source_if_it_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("import cv2\ncv2.imread('x')\n")
    stack = (Frame(str(tmp_path / "data.py"), 2, "load"), Frame("<string>", 1, "<module>"))
    assert write_stack(stack) == f"  {tmp_path}/data.py:2 in load: cv2.imread('x')\n  <string>:1 in <module>"


@contextmanager
def start(code: str, folder: Path, lines: int) -> Iterator[subprocess.Popen[str]]:
    """Start Python code in a session of its own, wait until it has written so many lines, and end all of it."""
    command, environment = [sys.executable, "-c", code], {**os.environ, TRIAL_VARIABLE: str(folder)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert process.stdout is not None
    with process:
        try:
            for _ in range(lines):
                process.stdout.readline()
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def await_status(pid: int, status: str) -> None:
    await_condition(lambda: psutil.Process(pid).status() == status, f"process {pid} to be {status}")


def test_processes_report_their_stacks_unless_they_are_stopped_or_have_no_handler(tmp_path: Path) -> None:
    with start(STANDS, tmp_path, lines=2) as process:
        pids = [process.pid, *(child.pid for child in psutil.Process(process.pid).children())]
        for pid in pids:
            await_status(pid, psutil.STATUS_SLEEPING)
        found = read_all_stacks([*pids, os.getpid(), 2**22 + 1], tmp_path / STACKS_FILE)
        assert [one.pid for one in found] == sorted(pids)
        functions = [[frame.name for frame in stack] for one in found for stack in one.threads]
        assert functions == [["stand_here", "<module>"]] * 2
        assert {one.state[0] for one in found} == {"S"}
        assert process.poll() is None
        os.kill(process.pid, signal.SIGSTOP)
        await_status(process.pid, psutil.STATUS_STOPPED)
        (stopped,) = read_all_stacks([process.pid], tmp_path / STACKS_FILE)
        assert (stopped.threads, stopped.state[0]) == ((), "T")


LOOP = Frame("/site-packages/torch/utils/data/_utils/worker.py", 271, "_worker_loop")
FETCH = Frame("/site-packages/torch/utils/data/_utils/fetch.py", 52, "fetch")
WAITING = (
    Frame("/lib/python3.12/selectors.py", 415, "select"),
    Frame("/lib/multiprocessing/queues.py", 113, "get"),
    LOOP,
)
TRIAL = Frame("/env/autotune/child/trial.py", 190, "_run_epoch")
SERVE = Frame("/env/autotune/child/server.py", 90, "serve")
START = Frame("/env/autotune/child/distributed.py", 80, "_start")
EXCHANGE = (Frame("/env/autotune/child/distributed.py", 140, "_sum"), TRIAL, SERVE, START)
LAUNCHER = (Frame("/env/autotune/child/distributed.py", 130, "_broadcast"),)
IDLE = (Frame("/env/autotune/protocol/messages.py", 60, "receive"), SERVE, START)
WAITS = (Frame("/x/torch/utils/data/dataloader.py", 1288, "_try_get_data"), TRIAL)


def process(pid: int, *stacks: Stack, state: str = "S in futex_wait_queue", parent: int = 0) -> ProcessStacks:
    return ProcessStacks(pid, state, stacks, parent)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Write a module of the user's, and give its path."""
    path = tmp_path / "data.py"
    path.write_text("import cv2\nimage = cv2.imread(path)\nwith self.lock:\n    tokenizer(text)\ntorch.ones(3).sum()\n")
    return str(path)


def in_worker(file: str, line: int) -> Stack:
    return Frame(file, line, "__getitem__"), FETCH, LOOP


def test_the_worker_that_does_not_wait_for_work_blocks_the_others(data: str) -> None:
    found = find_blocking([process(10, WAITS), process(11, WAITING), process(12, in_worker(data, 2))])
    assert found.sentence == (
        "worker 2 of 2 hangs in `__getitem__` at data.py:2: `image = cv2.imread(path)` (state S in futex_wait_queue)"
    )
    assert "the training process (process 10)" in found.stacks
    assert "worker 1 of 2 (process 11)" in found.stacks


def test_a_call_of_a_library_is_reported_with_the_users_line_that_led_to_it(data: str) -> None:
    found = find_blocking([process(1, (Frame(threading.__file__, 320, "wait"), *in_worker(data, 3)))])
    assert "hangs in `wait`, called by `__getitem__` at data.py:3: `with self.lock:`" in found.sentence


def test_the_training_process_hangs_if_no_worker_does(data: str) -> None:
    step = (Frame(data, 5, "step"), TRIAL, SERVE)
    helper = process(7, (Frame(data, 1, "serve_forever"), SERVE), parent=1)  # forked by the dataset, no rank
    found = find_blocking([process(1, step), process(2, WAITING), helper])
    assert found.sentence.startswith("the training process hangs in `step` at data.py:5")


@pytest.mark.parametrize("waiting", [EXCHANGE, IDLE])
def test_the_rank_that_the_others_wait_for_is_named(data: str, waiting: Stack) -> None:
    step = (Frame(data, 5, "step"), TRIAL, SERVE, START)
    found = find_blocking([process(1, LAUNCHER), process(2, waiting, parent=1), process(3, step, parent=1)])
    assert found.sentence.startswith("rank 1 hangs in `step` at data.py:5")
    assert "rank 0 (process 2)" in found.stacks


def test_a_worker_is_named_with_its_rank(data: str) -> None:
    ranks = [process(2, EXCHANGE, parent=1), process(3, EXCHANGE, parent=1)]
    workers = [process(4, WAITING, parent=2), process(5, in_worker(data, 2), parent=3)]
    found = find_blocking([process(1, LAUNCHER), *ranks, *workers])
    assert found.sentence.startswith("worker 1 of 1 of rank 1 hangs in `__getitem__`")


@pytest.mark.parametrize(("state", "advice"), [("S in futex_do_wait", FORKED_LOCK), ("D in nfs_wait", WAITS_FOR_DISK)])
def test_a_forked_process_without_a_stack_is_named_before_a_rank_that_waits_for_it(
    data: str, state: str, advice: str
) -> None:
    step = (Frame(data, 5, "step"), TRIAL, SERVE, START)
    ranks = [process(2, step, parent=1), process(3, WAITS, parent=1)]
    workers = [process(4, WAITING, parent=2), process(5, state=state, parent=3)]
    found = find_blocking([process(1, LAUNCHER), *ranks, *workers])
    assert found.sentence == f"a process forked by rank 1 does not respond (state {state})"
    assert found.advice == advice


def test_a_process_that_computes_needs_more_time_and_no_other_start_of_its_workers(data: str) -> None:
    assert find_blocking([process(1, (Frame(data, 5, "step"), TRIAL, SERVE), state="R")]).advice == COMPUTES
    assert find_blocking([process(1, (Frame(data, 5, "step"), TRIAL, SERVE))]).advice == ""


def test_idle_workers_are_a_deadlock_and_a_process_in_the_kernel_waits_for_a_disk(data: str) -> None:
    assert find_blocking([process(1, WAITS), process(2, WAITING)]).sentence == DEADLOCK
    assert find_blocking([]).sentence == ""
    assert find_blocking([process(1, in_worker(data, 2), state="D")]).advice == WAITS_FOR_DISK


@pytest.mark.parametrize(
    ("line", "library", "advice"),
    [
        (2, None, "cv2.setNumThreads(0)"),
        (3, None, "a lock or a thread that the training process had when it forked"),
        (4, None, "TOKENIZERS_PARALLELISM=false"),
        (5, None, "threads of OpenMP"),
        (1, None, ""),
        (1, "h5py/_hl/dataset.py", "open the file in the worker"),
        (1, "polars/lazyframe/frame.py", "Polars' threads do not survive a fork"),
        (1, "requests/adapters.py", "a reply of the network"),
    ],
)
def test_the_cause_of_a_hang_is_known_by_its_source_or_its_library(
    data: str, line: int, library: str | None, advice: str
) -> None:
    inner = (Frame(f"/env/site-packages/{library}", 1, "read"),) if library else ()
    found = find_blocking([process(1, (*inner, *in_worker(data, line)))])
    assert advice in found.advice
    assert bool(advice) == bool(found.advice)
