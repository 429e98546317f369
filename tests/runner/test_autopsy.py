from __future__ import annotations

import threading
from pathlib import Path

import pytest

from autotune.runner.hangs import UNKNOWN_PLACE, WAITS_FOR_DISK, Frame, Stack, StandingProcess, judge

LOOP = Frame("/site-packages/torch/utils/data/_utils/worker.py", 271, "_worker_loop")
FETCH = Frame("/site-packages/torch/utils/data/_utils/fetch.py", 52, "fetch")
WAITING = (
    Frame("/lib/python3.12/selectors.py", 415, "select"),
    Frame("/lib/multiprocessing/queues.py", 113, "get"),
    LOOP,
)
TRIAL = Frame("/env/autotune/child/measurement.py", 190, "_run_epoch")


def make_process(pid: int, *stacks: Stack, state: str = "S") -> StandingProcess:
    return StandingProcess(pid, state, "futex_wait_queue", stacks)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Write a module of the user's, and give its path."""
    path = tmp_path / "data.py"
    path.write_text("import cv2\nimage = cv2.imread(path)\nwith self.lock:\n    tokenizer(text)\ntorch.ones(3).sum()\n")
    return str(path)


def test_the_worker_that_does_not_wait_for_work_holds_the_others(data: str) -> None:
    reading = (Frame(data, 2, "__getitem__"), FETCH, LOOP)
    waits = (Frame("/x/torch/utils/data/dataloader.py", 1288, "_try_get_data"), TRIAL)
    found = judge([make_process(10, waits), make_process(11, WAITING), make_process(12, reading)])
    assert found.sentence == (
        "worker 2 of 2 stands in `__getitem__` at data.py:2: `image = cv2.imread(path)` (state S in futex_wait_queue)"
    )
    assert "the training process (process 10)" in found.stacks
    assert "worker 1 of 2 (process 11)" in found.stacks


def test_a_call_of_a_library_is_told_with_the_users_line_that_led_to_it(data: str) -> None:
    inner = Frame(threading.__file__, 320, "wait")
    found = judge([make_process(1, (inner, Frame(data, 3, "__getitem__"), FETCH, LOOP))])
    assert "stands in `wait`, called by `__getitem__` at data.py:3: `with self.lock:`" in found.sentence


def test_where_no_worker_stands_the_training_process_is_looked_at(data: str) -> None:
    found = judge([make_process(1, (Frame(data, 5, "step"), TRIAL)), make_process(2, WAITING)])
    assert found.sentence.startswith("the training process stands in `step` at data.py:5")


SERVE = Frame("/env/autotune/child/server.py", 90, "serve")
START = Frame("/env/autotune/child/ranks.py", 80, "_become")
EXCHANGE = (Frame("/env/autotune/child/lockstep.py", 140, "_gather"), TRIAL, SERVE, START)
LAUNCHER = (Frame("/env/autotune/child/ranks.py", 130, "_listen"),)
IDLE = (Frame("/env/autotune/trial/channel.py", 60, "receive"), SERVE, START)


def make_rank(pid: int, *stacks: Stack) -> StandingProcess:
    """Build a process that process 1 has started."""
    return StandingProcess(pid, "S", "futex_wait_queue", stacks, parent=1)


def test_a_process_that_the_dataset_has_forked_is_no_rank(data: str) -> None:
    helper = make_process(7, (Frame(data, 1, "serve_forever"), SERVE))
    found = judge([make_process(1, (Frame(data, 5, "step"), TRIAL, SERVE)), helper])
    assert found.sentence.startswith("the training process stands in `step`")


def test_the_rank_that_the_others_wait_for_is_named(data: str) -> None:
    step = (Frame(data, 5, "step"), TRIAL, SERVE, START)
    found = judge([make_process(1, LAUNCHER), make_rank(2, EXCHANGE), make_rank(3, step)])
    assert found.sentence.startswith("rank 1 stands in `step` at data.py:5")
    assert "rank 0 (process 2)" in found.stacks


def test_a_rank_that_waits_for_orders_holds_nobody(data: str) -> None:
    loading = (Frame(data, 5, "make"), SERVE, START)
    found = judge([make_process(1, LAUNCHER), make_rank(2, IDLE), make_rank(3, loading)])
    assert found.sentence.startswith("rank 1 stands in `make`")


def test_a_worker_is_named_with_its_rank(data: str) -> None:
    reading = StandingProcess(5, "S", "", ((Frame(data, 2, "__getitem__"), FETCH, LOOP),), parent=3)
    idle = StandingProcess(4, "S", "", (WAITING,), parent=2)
    found = judge([make_process(1, LAUNCHER), make_rank(2, EXCHANGE), make_rank(3, EXCHANGE), idle, reading])
    assert found.sentence.startswith("worker 1 of 1 of rank 1 stands in `__getitem__`")


def test_where_all_wait_for_one_another_that_is_told() -> None:
    waits = (Frame("/x/torch/utils/data/dataloader.py", 1288, "_try_get_data"), TRIAL)
    found = judge([make_process(1, waits), make_process(2, WAITING)])
    assert found.sentence == UNKNOWN_PLACE
    assert judge([]).sentence == ""


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
    found = judge([make_process(1, (Frame(data, line, "__getitem__"), FETCH, LOOP))])
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
    assert advice in judge([make_process(1, (library, Frame(data, 1, "__getitem__"), FETCH, LOOP))]).advice


def test_a_process_in_the_kernel_waits_for_a_disk(data: str) -> None:
    reading = (Frame(data, 2, "__getitem__"), FETCH, LOOP)
    assert judge([make_process(1, reading, state="D")]).advice == WAITS_FOR_DISK
