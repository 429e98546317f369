from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from autotune.runner.hangs import (
    UNKNOWN_PLACE,
    WAITS_FOR_DISK,
    Frame,
    ProcessStacks,
    Stack,
    find_blocking,
    read_all_stacks,
    read_stacks,
    write_stack,
)
from autotune.system.processes import STACKS_FILE
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
from autotune.child.stack_dump import dump_stacks_on_signal

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
        found = read_all_stacks(pids, tmp_path / STACKS_FILE)
        assert [one.pid for one in found] == sorted(pids)
        assert [[frame.function for frame in stack] for one in found for stack in one.threads] == [
            ["stand_here", "<module>"]
        ] * 2
        assert {one.state for one in found} == {"S"}
        assert process.poll() is None


def test_who_does_not_listen_is_not_asked_and_lives_on(tmp_path: Path) -> None:
    with start("print('ready', flush=True); import time; time.sleep(3600)", tmp_path, lines=1) as process:
        assert read_all_stacks([process.pid, os.getpid(), 2**22 + 1], tmp_path / STACKS_FILE) == ()
        time.sleep(0.1)
        assert process.poll() is None


def test_a_process_that_does_not_answer_in_time_is_told_by_its_state(tmp_path: Path) -> None:
    with start(STANDS, tmp_path, lines=2) as process:
        os.kill(process.pid, signal.SIGSTOP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        (found,) = read_all_stacks([process.pid], tmp_path / STACKS_FILE)
        assert found.threads == ()
        assert found.describe_state().startswith("state T")


LOOP = Frame("/site-packages/torch/utils/data/_utils/worker.py", 271, "_worker_loop")
FETCH = Frame("/site-packages/torch/utils/data/_utils/fetch.py", 52, "fetch")
WAITING = (
    Frame("/lib/python3.12/selectors.py", 415, "select"),
    Frame("/lib/multiprocessing/queues.py", 113, "get"),
    LOOP,
)
TRIAL = Frame("/env/autotune/child/trial.py", 190, "_run_epoch")


def make_process(pid: int, *stacks: Stack, state: str = "S") -> ProcessStacks:
    return ProcessStacks(pid, state, "futex_wait_queue", stacks)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Write a module of the user's, and give its path."""
    path = tmp_path / "data.py"
    path.write_text("import cv2\nimage = cv2.imread(path)\nwith self.lock:\n    tokenizer(text)\ntorch.ones(3).sum()\n")
    return str(path)


def test_the_worker_that_does_not_wait_for_work_holds_the_others(data: str) -> None:
    reading = (Frame(data, 2, "__getitem__"), FETCH, LOOP)
    waits = (Frame("/x/torch/utils/data/dataloader.py", 1288, "_try_get_data"), TRIAL)
    found = find_blocking([make_process(10, waits), make_process(11, WAITING), make_process(12, reading)])
    assert found.sentence == (
        "worker 2 of 2 hangs in `__getitem__` at data.py:2: `image = cv2.imread(path)` (state S in futex_wait_queue)"
    )
    assert "the training process (process 10)" in found.stacks
    assert "worker 1 of 2 (process 11)" in found.stacks


def test_a_call_of_a_library_is_told_with_the_users_line_that_led_to_it(data: str) -> None:
    inner = Frame(threading.__file__, 320, "wait")
    found = find_blocking([make_process(1, (inner, Frame(data, 3, "__getitem__"), FETCH, LOOP))])
    assert "hangs in `wait`, called by `__getitem__` at data.py:3: `with self.lock:`" in found.sentence


def test_where_no_worker_stands_the_training_process_is_looked_at(data: str) -> None:
    found = find_blocking([make_process(1, (Frame(data, 5, "step"), TRIAL)), make_process(2, WAITING)])
    assert found.sentence.startswith("the training process hangs in `step` at data.py:5")


SERVE = Frame("/env/autotune/child/server.py", 90, "serve")
START = Frame("/env/autotune/child/distributed.py", 80, "_start")
EXCHANGE = (Frame("/env/autotune/child/distributed.py", 140, "_sum"), TRIAL, SERVE, START)
LAUNCHER = (Frame("/env/autotune/child/distributed.py", 130, "_poll"),)
IDLE = (Frame("/env/autotune/protocol/messages.py", 60, "receive"), SERVE, START)


def make_rank(pid: int, *stacks: Stack) -> ProcessStacks:
    """Build a process that process 1 has started."""
    return ProcessStacks(pid, "S", "futex_wait_queue", stacks, parent=1)


def test_a_process_that_the_dataset_has_forked_is_no_rank(data: str) -> None:
    helper = make_process(7, (Frame(data, 1, "serve_forever"), SERVE))
    found = find_blocking([make_process(1, (Frame(data, 5, "step"), TRIAL, SERVE)), helper])
    assert found.sentence.startswith("the training process hangs in `step`")


def test_the_rank_that_the_others_wait_for_is_named(data: str) -> None:
    step = (Frame(data, 5, "step"), TRIAL, SERVE, START)
    found = find_blocking([make_process(1, LAUNCHER), make_rank(2, EXCHANGE), make_rank(3, step)])
    assert found.sentence.startswith("rank 1 hangs in `step` at data.py:5")
    assert "rank 0 (process 2)" in found.stacks


def test_a_rank_that_waits_for_orders_holds_nobody(data: str) -> None:
    loading = (Frame(data, 5, "make"), SERVE, START)
    found = find_blocking([make_process(1, LAUNCHER), make_rank(2, IDLE), make_rank(3, loading)])
    assert found.sentence.startswith("rank 1 hangs in `make`")


def test_a_worker_is_named_with_its_rank(data: str) -> None:
    reading = ProcessStacks(5, "S", "", ((Frame(data, 2, "__getitem__"), FETCH, LOOP),), parent=3)
    idle = ProcessStacks(4, "S", "", (WAITING,), parent=2)
    found = find_blocking([make_process(1, LAUNCHER), make_rank(2, EXCHANGE), make_rank(3, EXCHANGE), idle, reading])
    assert found.sentence.startswith("worker 1 of 1 of rank 1 hangs in `__getitem__`")


def test_where_all_wait_for_one_another_that_is_told() -> None:
    waits = (Frame("/x/torch/utils/data/dataloader.py", 1288, "_try_get_data"), TRIAL)
    found = find_blocking([make_process(1, waits), make_process(2, WAITING)])
    assert found.sentence == UNKNOWN_PLACE
    assert find_blocking([]).sentence == ""


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (2, "cv2.setNumThreads(0)"),
        (3, "a lock or a thread that the training process had when it forked"),
        (4, "TOKENIZERS_PARALLELISM=false"),
        (5, "Threads of OpenMP"),
        (1, ""),
    ],
)
def test_what_a_line_waits_for_is_known_by_its_source(data: str, line: int, advice: str) -> None:
    found = find_blocking([make_process(1, (Frame(data, line, "__getitem__"), FETCH, LOOP))])
    assert advice in found.advice
    assert bool(advice) == bool(found.advice)


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("h5py/_hl/dataset.py", "open the file in the worker"),
        ("polars/lazyframe/frame.py", "Polars' threads do not survive a fork"),
        ("requests/adapters.py", "an answer of the network"),
    ],
)
def test_what_a_library_waits_for_is_known_by_its_files(data: str, place: str, advice: str) -> None:
    library = Frame(f"/env/site-packages/{place}", 1, "read")
    assert advice in find_blocking([make_process(1, (library, Frame(data, 1, "__getitem__"), FETCH, LOOP))]).advice


def test_a_process_in_the_kernel_waits_for_a_disk(data: str) -> None:
    reading = (Frame(data, 2, "__getitem__"), FETCH, LOOP)
    assert find_blocking([make_process(1, reading, state="D")]).advice == WAITS_FOR_DISK
