"""Added workers that fail: training gets the batches that it gets without them, and one sentence."""

from __future__ import annotations

import errno
import functools
import gc
import multiprocessing
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils import signal_handling

from autotune.online.attach import autopilot, explain_refusal
from autotune.online.epoch import Epoch
from autotune.online.group import WorkerSettings, defer_signals, start_quietly, wait_for_ending_workers
from autotune.online.limits import WorkerLimits
from autotune.online.worker import WorkerCounters, describe_error, start_worker
from autotune.profiles.load import RESERVED_FILES
from tests.online.test_epoch import (
    indices_of,
    iterate,
    list_children,
    make_epoch,
    make_loader,
    own_settings,
    wait_until,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
FOUR = WorkerSettings(4, 2)


class Failing(Dataset[tuple[int, torch.Tensor]]):
    """Samples that only the user's own workers can load."""

    def __init__(self, own: int, fail: Callable[[], object], seconds: float = 0.0002) -> None:
        self._own, self._fail, self._seconds = own, fail, seconds

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        info = get_worker_info()
        if info is not None and info.id >= self._own:
            self._fail()
        time.sleep(self._seconds)
        return index, torch.zeros(1)


def raise_error() -> None:
    raise OSError("this worker cannot read")


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(1000)


def close_all_files() -> None:
    os.closerange(3, 60_000)
    hang()


def fail_in_init(fail: Callable[[], object], own: int, worker: int) -> None:
    if worker >= own:
        fail()


class MuteError(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise ValueError


def raise_mute() -> None:
    raise MuteError


FAILURES = {
    "raise": (raise_error, "OSError: this worker cannot read"),
    "raise an error without a text": (raise_mute, r"\(MuteError\)"),
    "are killed": (be_killed, "exited unexpectedly|killed by signal"),
    "hang": (hang, "they returned no batch for 1.5 s"),
    "close all files": (close_all_files, "EOFError|they returned no batch|exited unexpectedly"),
}


def check_that_training_goes_on(loader: DataLoader[Any], start: WorkerSettings | None = None) -> str:
    """Return the failure."""
    before = set(list_children())
    epoch = make_epoch(loader, start)

    def change(epoch: Epoch) -> None:
        if epoch.failure:
            epoch.change(own_settings(loader))
        elif epoch.delivered == 2:
            assert epoch.change(FOUR)
            assert epoch.settings == (own_settings(loader) if epoch.failure else FOUR)

    assert indices_of(list(iterate(epoch, change))) == indices_of(list(make_loader(0, "in order")))
    wait_until(lambda: not set(list_children()) - before)
    return epoch.failure


@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("place", ["in a sample", "in worker_init_fn"])
@pytest.mark.parametrize("name", FAILURES)
def test_the_own_settings_load_the_batches_of_workers_that(
    name: str, place: str, own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("hang", "close all files"):
        monkeypatch.setattr("autotune.online.epoch.HANG_SECONDS", 1.5)
    monkeypatch.setattr("autotune.online.epoch.POLL_SECONDS", 0.5)
    fail, words = FAILURES[name]
    is_in_sample = place == "in a sample"
    init = None if is_in_sample else functools.partial(fail_in_init, fail, own)
    dataset = Failing(own, fail if is_in_sample else list)
    loader = DataLoader(dataset, 8, num_workers=own, worker_init_fn=init)
    assert re.search(words, check_that_training_goes_on(loader))


def test_the_timeout_of_the_user_counts_for_added_workers() -> None:
    loader = DataLoader(Failing(1, hang), 8, num_workers=1, timeout=3)
    assert "they returned no batch for 3 s" in check_that_training_goes_on(loader)


def test_persistent_workers_that_hung_when_an_epoch_was_left_early_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autotune.online.group.HANG_SECONDS", 1.0)
    loader = DataLoader(Failing(1, hang), 8, num_workers=1, persistent_workers=True)
    first = make_epoch(loader, WorkerSettings(2, 2))  # added ones, of which the second hangs
    next(iterate(first))
    own, counters = own_settings(loader), WorkerCounters()
    second = Epoch(loader, WorkerSettings(2, 2), own, counters, WorkerLimits(), first.kept, first.seeds)
    assert indices_of(list(iterate(second))) == indices_of(list(make_loader(0, "in order")))
    assert "timed out" in second.failure


def test_workers_of_the_first_batch_that_fail_are_replaced() -> None:
    loader = DataLoader(Failing(0, raise_error), 8)
    assert "OSError" in check_that_training_goes_on(loader, WorkerSettings(1, 2))


def test_a_failure_is_reported_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    loader = autopilot(DataLoader(Failing(0, raise_error, seconds=0.03), 8), None)  # an epoch longer than a window
    for _ in range(2):
        assert indices_of(list(loader)) == indices_of(list(make_loader(0, "in order")))
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence == "dltune: num_workers=0 stays: added workers failed (OSError: this worker cannot read)."


class Locked(Failing):
    """Samples that are loaded under a lock."""

    lock = threading.Lock()

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        with self.lock:
            return super().__getitem__(index)


@pytest.mark.parametrize(
    ("error", "described"),
    [(KeyError("label"), "KeyError: 'label'"), (ValueError("\nbad header"), "ValueError: bad header")],
)
def test_the_notes_of_a_workers_error_are_not_taken_for_it(error: Exception, described: str) -> None:
    def fail() -> None:
        if isinstance(error, KeyError):
            error.add_note("in the third shard")
        raise error

    with pytest.raises(type(error)) as raised:
        fail()
    sent = ExceptionWrapper((raised.type, raised.value, raised.tb), "in DataLoader worker process 0")
    with pytest.raises(type(error)) as received:
        sent.reraise()
    assert describe_error(received.value) == described


def test_workers_that_are_forked_while_a_thread_holds_a_lock_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.online.epoch.HANG_SECONDS", 1.0)
    monkeypatch.setattr("autotune.online.epoch.POLL_SECONDS", 0.5)
    locked, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with Locked.lock:
            locked.set()
            forked.wait()

    def change(epoch: Epoch) -> None:
        if epoch.delivered == 2:
            thread = threading.Thread(target=hold)
            thread.start()
            locked.wait()
            epoch.change(FOUR)
            forked.set()
            thread.join()

    epoch = make_epoch(DataLoader(Locked(0, list), 8))
    assert indices_of(list(iterate(epoch, change))) == indices_of(list(make_loader(0, "in order")))
    assert "they returned no batch for 1 s" in epoch.failure


def test_the_time_in_which_a_training_is_suspended_is_not_that_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=lambda: 1000 * time.perf_counter(), process_time=time.process_time)
    monkeypatch.setattr("autotune.online.epoch.time", clock)
    monkeypatch.setattr("autotune.online.epoch.POLL_SECONDS", 0.1)
    epoch = make_epoch(DataLoader(Failing(0, functools.partial(time.sleep, 0.02)), 60), WorkerSettings(1, 2))
    assert len(list(iterate(epoch))) == 2
    assert not epoch.failure


def test_a_process_that_is_forked_while_another_thread_starts_workers_can_start_its_own() -> None:
    is_started, is_forked = threading.Event(), threading.Event()

    def start() -> None:
        with start_quietly(is_own=False):
            is_started.set()
            is_forked.wait()

    def start_in_child() -> None:
        with start_quietly(is_own=False):
            pass

    thread = threading.Thread(target=start)
    thread.start()
    is_started.wait()
    process = multiprocessing.get_context("fork").Process(target=start_in_child)
    process.start()
    process.join(30)
    is_forked.set()
    thread.join()
    process.kill()
    assert process.exitcode == 0


def test_a_handler_of_the_end_of_workers_that_torch_sets_while_they_start_stays() -> None:
    before = signal.signal(signal.SIGCHLD, lambda *_: None)

    def note_end(*_: object) -> None:
        """Look at the workers, as torch's own handler."""

    try:
        with defer_signals():
            signal.signal(signal.SIGCHLD, note_end)
        assert signal.getsignal(signal.SIGCHLD) is note_end
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_training_that_keeps_tensors_of_workers_has_files_left_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    epoch = make_epoch(DataLoader(Failing(0, list), 1), WorkerSettings(1, 2))
    most = lowest + RESERVED_FILES // 2 + 60
    monkeypatch.setattr("autotune.online.limits.read_nofile_limit", lambda: most)
    kept = list(iterate(epoch))
    assert [int(index) for index, _ in kept] == list(range(120))
    assert "each tensor of a worker that the training keeps is one" in epoch.failure


def test_two_threads_that_start_workers_at_once_leave_torch_and_the_garbage_collector_as_they_were() -> None:
    def start() -> None:
        with start_quietly(is_own=False):
            time.sleep(0.05)

    signals: Any = signal_handling
    register, threads = signals._set_worker_pids, [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert signals._set_worker_pids is register
    assert gc.isenabled()


def test_an_interrupt_during_the_start_of_workers_arrives_after_it() -> None:
    steps = list[str]()

    def start() -> None:
        with defer_signals(), start_quietly(is_own=False):
            signal.raise_signal(signal.SIGINT)
            steps.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class JobError(TimeoutError):
    """The time limit of the job, which a handler of the script raises."""


@pytest.mark.parametrize("file", ["train.py", "site-packages/time_limit.py"])
def test_an_error_that_a_signal_handler_of_the_script_raises_is_none_of_the_workers(file: str) -> None:
    content: dict[str, Any] = {"JobError": JobError}
    exec(compile("def end_job(number, frame):\n    raise JobError", file, "exec"), content)
    end_job = content["end_job"]
    before = signal.signal(signal.SIGALRM, end_job)
    try:
        epoch = make_epoch(DataLoader(Failing(0, list, seconds=0.2), 8), WorkerSettings(1, 2))
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(JobError):
            list(iterate(epoch))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not epoch.failure


class Undeliverable:
    """A batch that a worker can send, and the training process cannot receive."""

    def __init__(self, _samples: Any) -> None:
        pass

    def __reduce__(self) -> Any:
        return raise_error, ()


def test_a_batch_that_cannot_be_received_is_loaded_by_the_own_settings() -> None:
    epoch = make_epoch(DataLoader(Failing(0, list), 8, collate_fn=Undeliverable), FOUR)
    assert len(list(iterate(epoch))) == 15
    assert "OSError: this worker cannot read" in epoch.failure


class FailingLate(Failing):
    """Samples of which workers can load the first ones, so that they send batches before."""

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return super().__getitem__(index) if index >= 80 else (index, torch.zeros(1))


def test_workers_whose_dataset_raises_an_error_end_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.online.group.SOON_SECONDS", 30.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.delitem(config, "tempdir", raising=False)  # so that each worker makes a folder of its own
    assert "OSError" in check_that_training_goes_on(DataLoader(FailingLate(0, raise_error), 8))
    wait_until(lambda: not list(tmp_path.iterdir()))


@pytest.mark.slow  # torch waits five seconds
def test_a_stopped_worker_ends_with_its_epoch() -> None:
    before = set(list_children())
    batches = iterate(make_epoch(make_loader(0), FOUR))
    next(batches)
    stopped = (set(list_children()) - before).pop()
    os.kill(int(stopped), signal.SIGSTOP)
    del batches
    wait_until(lambda: not set(list_children()) - before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch deletes a half-made iterator
@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM])
def test_a_fork_that_fails_changes_nothing(code: int, own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, forks = os.fork, [0] * (own + 1)

    def fail_after_some() -> int:
        if not forks:
            raise OSError(code, os.strerror(code))
        forks.pop()
        return fork()

    monkeypatch.setattr(os, "fork", fail_after_some)
    failure = check_that_training_goes_on(DataLoader(Failing(9, list), 8, num_workers=own))
    assert os.strerror(code) in failure


def test_a_return_to_the_users_workers_that_could_not_be_started_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader: Any = autopilot(DataLoader(Failing(9, list), 1, num_workers=2, sampler=[0] * 600), None, quiet=True)
    batches = iter(loader)
    state, fork, is_full = loader.autopilot_state, os.fork, [True]
    state.controller.settings = WorkerSettings(0, 2)
    while state._epoch.settings.workers:
        next(batches)

    def fail_once() -> int:
        if is_full:
            is_full.clear()
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", fail_once)
    state.controller.settings = state.controller.own
    for _ in range(100):
        next(batches)
    assert "Resource temporarily unavailable" in state.controller.failure
    assert state._epoch.settings == WorkerSettings(2, 2)
    assert state._epoch.groups[0].started


@pytest.mark.parametrize("own", [0, 2])
def test_workers_that_grow_beyond_the_memory_budget_end(own: int) -> None:
    wait_for_ending_workers()
    before = set(list_children())
    epoch = make_epoch(make_loader(own, "in order"))

    def change(epoch: Epoch) -> None:
        if epoch.delivered == 2:
            epoch.change(FOUR)
        elif epoch.delivered == 5:
            epoch.fall_back("7 workers take 4 GiB")
            wait_until(lambda: len(set(list_children()) - before) == 2 * own)  # of the user, ending ones and new ones

    assert indices_of(list(iterate(epoch, change))) == indices_of(list(make_loader(0, "in order")))


class PreemptedError(Exception):
    pass


@pytest.mark.parametrize("moment", ["while it waits for a batch", "while workers start", "while its dataset is read"])
def test_an_error_of_a_signal_handler_ends_the_training(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def preempt(*_: object) -> None:
        raise PreemptedError

    before, fork = signal.signal(signal.SIGALRM, preempt), os.fork

    def signal_and_fork() -> int:
        signal.raise_signal(signal.SIGALRM)
        return fork()

    def signal_and_explain(*_: object) -> str:
        signal.raise_signal(signal.SIGALRM)
        return ""

    epoch = make_epoch(DataLoader(Failing(0, list, seconds=0.02), 8))
    if moment == "while its dataset is read":
        monkeypatch.setattr("autotune.online.shared_state.SharedState.explain", signal_and_explain)

    def change(epoch: Epoch) -> None:
        if epoch.delivered == 2:
            if moment == "while workers start":
                monkeypatch.setattr("os.fork", signal_and_fork)
            epoch.change(FOUR)
        elif epoch.delivered == 4:
            signal.setitimer(signal.ITIMER_REAL, 0.03)

    try:
        with pytest.raises(PreemptedError):
            list(iterate(epoch, change))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert not epoch.failure


def test_a_thread_that_cannot_start_ends_no_later_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loader = autopilot(DataLoader(Failing(2, list), 8, num_workers=2), None, quiet=True)
    expected = indices_of(list(make_loader(0, "in order")))
    iterator = iter(loader)
    found = [next(iterator) for _ in range(len(loader))]
    monkeypatch.setattr(threading.Thread, "start", fail)
    assert next(iterator, None) is None
    monkeypatch.undo()
    assert indices_of(found) == indices_of(list(loader)) == expected


def test_a_worker_whose_training_has_ended_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("gc.freeze", list)
    for parent in (os.getppid(), 0, 1 << 22):
        start_worker(None, False, parent, 0, 0.0, {}, 0)
    assert codes == [1]


def test_a_worker_has_the_handlers_of_the_script(tmp_path: Path) -> None:
    def note(*_: object) -> None:
        (tmp_path / str(os.getpid())).touch()

    before = signal.signal(signal.SIGUSR1, note)
    try:
        epoch = make_epoch(DataLoader(Failing(0, lambda: os.kill(os.getpid(), signal.SIGUSR1)), 8), FOUR)
        list(iterate(epoch))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(list(tmp_path.iterdir())) == 4


def test_no_worker_is_added_if_the_sockets_of_workers_would_have_too_long_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 72)
    assert explain_refusal(make_loader(workers=0)) == ""
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 73)
    assert explain_refusal(make_loader(workers=0)).endswith("longer than 73 bytes: export TMPDIR=/tmp")
