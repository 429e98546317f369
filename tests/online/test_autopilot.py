"""`autopilot` on loaders: what training gets is the same, and workers come where they help."""

from __future__ import annotations

import copy
import functools
import gc
import io
import itertools
import multiprocessing
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, random_split

from autotune.checking import check
from autotune.errors import UsageError
from autotune.online.attach import attach, autopilot
from autotune.online.autopilot import Autopilot, Options, Stats, print_sentence
from autotune.online.group import WorkerGroup, WorkerSettings, list_workers, wait_for_ending_workers
from autotune.online.result import find_start, read_facts, read_hardware, save_result
from autotune.online.windows import PAUSE_SECONDS, Window
from autotune.profiles.load import load, select_profile
from autotune.profiles.store import read_profiles, save_profile

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are saved in a folder of the test."""
    monkeypatch.chdir(tmp_path)


class Waiting(Dataset[torch.Tensor]):
    """Samples that wait, with a random augmentation."""

    def __init__(self, seconds: float = 0.0, length: int = 64) -> None:
        self._seconds, self._length = seconds, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.tensor([float(index), torch.rand(1).item()])


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


class Resumable(torch.utils.data.SequentialSampler):
    """A sampler whose position a checkpoint has."""

    def __init__(self) -> None:
        super().__init__(range(8))

    def state_dict(self) -> dict[str, int]:
        return {}


def run_epochs(workers: int, *, persistent: bool = False, tuned: bool, stop_at: int | None = None) -> list[Any]:
    torch.manual_seed(7)
    loader = DataLoader(Waiting(), 8, shuffle=True, num_workers=workers, persistent_workers=persistent)
    if tuned:
        autopilot(loader, quiet=True)
    found = []
    for _ in range(3):
        for position, batch in enumerate(loader):
            found.append(batch.tolist())
            if position == stop_at:
                break
    return [*found, torch.rand(1).item()]


@pytest.mark.parametrize("stop_at", [None, 3], ids=["whole epochs", "epochs that end early"])
@pytest.mark.parametrize("persistent", [False, True])
def test_three_short_epochs_are_bit_identical(persistent: bool, stop_at: int | None) -> None:
    plain = run_epochs(2, persistent=persistent, tuned=False, stop_at=stop_at)
    assert run_epochs(2, persistent=persistent, tuned=True, stop_at=stop_at) == plain


def test_samples_that_wait_get_workers_and_keep_their_order() -> None:
    loader = DataLoader(Waiting(0.004, 3200), 8, shuffle=True, generator=torch.Generator().manual_seed(1))
    autopilot(loader, quiet=True)
    found = [index for batch in loader for index in batch[:, 0].int().tolist()]
    assert found == order_without_tuning()
    state: Any = loader.autopilot_state  # type: ignore[attr-defined]  # of the tuned class
    assert state.controller.settings.workers > 2


def converge(seconds: float) -> Any:
    """Train on samples that wait until the workers no longer change; return the state."""
    loader = autopilot(DataLoader(Waiting(seconds, 100_000), 8), max_workers=6, quiet=True)
    for _ in loader:
        state: Any = loader.autopilot_state  # type: ignore[attr-defined]  # of the tuned class
        if state.controller.has_converged:
            return state
    raise AssertionError("the epoch has ended")


def test_a_loader_that_keeps_up_gets_no_worker() -> None:
    samples: Any = range(100_000)
    loader: Any = autopilot(DataLoader(samples, 8), None, quiet=True)
    for _ in loader:
        time.sleep(0.02)  # the step
        if loader.autopilot_state.controller.has_converged:
            break
    assert list(loader.autopilot_state.controller.windows) == [WorkerSettings(0, 2)]


def test_a_training_that_ends_before_it_converged_has_a_result_though_its_loader_is_gone() -> None:
    loader: Any = autopilot(DataLoader(Waiting(), 8), quiet=True)
    assert len(list(loader)) == 8
    state = loader.autopilot_state
    state.controller.windows = {WorkerSettings(workers, 2): Window(8 + workers, 1.0) for workers in range(3)}
    del loader
    state.finish()
    profile = select_profile(Path("dltune.json"))
    assert (profile.config.dataloader.num_workers, profile.is_complete) == (2, False)
    start = find_start(Path("dltune.json"), state.facts, WorkerSettings(0, 2))
    assert start is not None
    assert (start.settings, start.is_complete) == (WorkerSettings(2, 2), False)  # the next run tries more
    assert find_start(Path("dltune.json"), state.facts, WorkerSettings(24, 2)) is None  # it had another baseline


@pytest.mark.parametrize(("most", "is_complete"), [(2, True), (64, False)])
def test_a_result_that_limits_kept_low_is_searched_again_if_they_allow_more(most: int, is_complete: bool) -> None:
    path, state = Path("dltune.json"), Autopilot(DataLoader(Waiting(), 8), Options(None))
    state.controller.windows = {WorkerSettings(workers, 2): Window(8 + workers, 1.0, 0.9) for workers in range(3)}
    state.controller.settings, state.controller.has_converged = WorkerSettings(2, 2), True
    save_result(path, state.facts, state.controller, 1.0, most=2)
    found = find_start(path, state.facts, WorkerSettings(0, 2), most)
    assert found is not None
    assert (found.settings, found.is_complete) == (WorkerSettings(2, 2), is_complete)


def test_the_rates_of_other_numbers_of_workers_explain_why_the_users_stay() -> None:
    state = Autopilot(DataLoader(Waiting(), 8), Options(None))
    state.controller.windows = {
        WorkerSettings(0, 2): Window(120, 10.0, 9.0),
        WorkerSettings(1, 2): Window(90, 10.0),
        WorkerSettings(4, 4): Window(71, 10.0),
    }
    state.controller.has_converged = True
    rates = "12.0 batches/s (9.00 with 1, 7.10 with 4 and prefetch_factor=4)"
    assert state.describe() == f"num_workers=0 stays: {rates}, waits 90% of the time."


def test_a_budget_below_the_memory_of_one_worker_explains_why_there_is_none() -> None:
    state = Autopilot(DataLoader(Waiting(), 8), Options(None, max_memory="1MiB"))
    state.controller.add(Window(120, 10.0, 9.0))
    reason = "a worker needs about 48.0 MiB, more than 1.0 MiB of memory (max_memory='1MiB')"
    assert state.describe() == f"num_workers=0 stays: 12.0 batches/s, waits 90% of the time; {reason}."


def test_added_workers_that_failed_are_no_result() -> None:
    loader: Any = autopilot(DataLoader(Waiting(), 8), quiet=True)
    list(loader)
    loader.autopilot_state.controller.windows[WorkerSettings(0, 2)] = Window(8, 1.0)
    loader.autopilot_state._fail("one was killed")
    assert not Path("dltune.json").exists()


def test_a_result_whose_workers_fail_later_is_removed_and_others_stay() -> None:
    state = converge(0.004)
    (saved,) = read_profiles(Path("dltune.json"))
    other = saved.model_copy(update={"workload": saved.workload.model_copy(update={"step": "another one"})})
    save_profile(Path("dltune.json"), other)
    state._fail("one was killed")
    assert read_profiles(Path("dltune.json")) == (other,)


def prepare_worker(worker_id: int) -> None:
    """Prepare the dataset in a worker."""


@pytest.mark.parametrize(("init", "is_tried"), [(prepare_worker, False), (None, True)])
def test_batches_are_loaded_in_the_training_process_unless_workers_prepare_the_dataset(
    init: Any, is_tried: bool
) -> None:
    samples: Any = torch.arange(1_000_000)
    loader: Any = autopilot(DataLoader(samples, 8, num_workers=1, worker_init_fn=init), None, quiet=True)
    for _ in loader:
        if loader.autopilot_state.controller.has_converged:
            break
    tried = {one.workers for one in loader.autopilot_state.controller.windows}
    assert (0 in tried) == is_tried


def test_batches_are_not_loaded_in_a_thread_that_shares_the_random_numbers_of_the_training() -> None:
    samples: Any = torch.arange(1_000_000)
    loader: Any = autopilot(DataLoader(samples, 8, num_workers=1), None, quiet=True)

    def prefetch() -> None:
        for _ in loader:
            if loader.autopilot_state.controller.has_converged:
                break

    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()
    assert all(one.workers for one in loader.autopilot_state.controller.windows)


def test_epochs_shorter_than_a_window_are_tuned_too() -> None:
    loader: Any = autopilot(DataLoader(Waiting(0.004, 320), 8), None, quiet=True)
    for _ in range(60):
        assert sum(len(batch) for batch in loader) == 320
        if loader.autopilot_state.controller.settings.workers > 2:
            return
    raise AssertionError("no workers were added in 60 epochs")


def test_epochs_get_no_more_workers_than_batches() -> None:
    loader: Any = autopilot(DataLoader(Waiting(0.02, 40), 8), None, quiet=True)
    for _ in range(200):
        assert len(list(loader)) == 5
        controller = loader.autopilot_state.controller
        if controller.has_converged:
            break
    assert 2 < max(one.workers for one in controller.windows) <= 5


def test_epochs_whose_batches_are_all_under_way_at_once_are_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.online.windows.SHORT_STARTED_EPOCH_SECONDS", 0.1)
    loader: Any = autopilot(DataLoader(Waiting(0.005, 128), 8, num_workers=6, prefetch_factor=4), None, quiet=True)
    for _ in range(60):
        assert sum(len(batch) for batch in loader) == 128
        if loader.autopilot_state.controller.windows:
            return
    raise AssertionError("no window in 60 epochs")


def test_on_stats_gets_the_numbers_of_each_window() -> None:
    found = list[dict[str, float]]()
    loader = autopilot(DataLoader(Waiting(0.004, 4000), 8), None, max_workers=2, on_stats=found.append, quiet=True)
    next(None for _ in loader if len(found) == 3)
    assert [one["data/num_workers"] for one in found] == [0, 1, 2]
    assert all(one["data/batches_per_second"] > 0 and 0 < one["data/wait_share"] <= 1 for one in found)


def test_the_result_is_saved_and_the_next_run_starts_with_it() -> None:
    first = converge(0.004)
    profile = select_profile(Path("dltune.json"))
    assert profile.dataloader.num_workers == first.controller.settings.workers == 6
    assert (profile.search.sampler, profile.is_validated, profile.result.decision) == ("training", False, "faster")
    assert profile.result.speedup is not None
    assert profile.result.speedup > 3
    assert check("dltune.json").is_valid
    made = load("dltune.json").make_loader(Waiting(), shuffle=True)
    assert (made.num_workers, made.batch_size) == (6, 8)
    stored = Path("dltune.json").read_text()
    memory, name = profile.hardware.memory_limit_bytes, '"memory_limit_bytes": '
    assert f"{name}{memory}" in stored
    Path("dltune.json").write_text(stored.replace(f"{name}{memory}", f"{name}{memory - 4096}"))  # of the next kernel
    assert next(iter(converge(0.004).controller.windows)) == WorkerSettings(6, 2)


def test_a_file_that_cannot_be_written_does_not_end_the_training() -> None:
    Path("dltune.json").write_text("not a tuned file")
    converge(0.004)
    assert Path("dltune.json").read_text() == "not a tuned file"


class Sampler(torch.utils.data.BatchSampler):
    def __init__(self, batch_size: Any) -> None:
        super().__init__(range(64), 8, drop_last=False)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        return iter([list(range(first, first + 8)) for first in range(0, 64, 8)])


@pytest.mark.parametrize("size", [[8, 16], np.int64(8), 0], ids=["several", "of numpy", "unknown"])
def test_a_loader_that_is_hard_to_describe_is_saved(size: Any) -> None:
    loader = DataLoader(Waiting(), batch_sampler=Sampler(size), pin_memory=None)  # type: ignore[arg-type]
    autopilot(loader, quiet=True)
    assert len(list(loader)) == 8
    state: Any = loader.autopilot_state  # type: ignore[attr-defined]  # of the tuned class
    state.controller.windows = {WorkerSettings(workers, 2): Window(8 + workers, 1.0) for workers in range(3)}
    state.controller.finish()
    state._save_result()
    assert Path("dltune.json").exists()


def test_a_copied_loader_reports_to_the_same_function() -> None:
    lock = threading.Lock()  # cannot be copied
    loader = autopilot(DataLoader(Waiting(), 8), on_stats=functools.partial(isinstance, lock), quiet=True)
    again: Any = copy.deepcopy(loader)
    options = loader.autopilot_options  # type: ignore[attr-defined]  # of the tuned class
    assert again.autopilot_options == options
    assert again.autopilot_options.on_stats is options.on_stats


def test_a_change_is_made_at_the_end_of_the_window_that_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = autopilot(DataLoader(Waiting(0.0, 3200), 8), None, quiet=True)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    state, epoch = loader.autopilot_state, loader.autopilot_state._epoch
    asked, changed = list[int](), list[int]()

    def ask(_: Window) -> None:
        state.controller.settings = WorkerSettings(1, 2)
        asked.append(epoch.delivered)

    monkeypatch.setattr(state.controller, "add", ask)
    monkeypatch.setattr(epoch, "change", lambda settings: changed.append(epoch.delivered))
    monkeypatch.setattr("autotune.online.windows.SHORT_WINDOW_SECONDS", 0.0)
    while not asked:
        next(iterator)
    assert changed == asked


@pytest.mark.parametrize(("is_terminal", "text"), [(True, "\r\x1b[Kdltune: done\n"), (False, "dltune: done\n")])
def test_a_sentence_clears_the_line_of_a_progress_bar_on_a_terminal(
    is_terminal: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    print_sentence("done")
    assert stream.getvalue() == text


def test_a_stderr_of_the_user_gets_the_sentence_and_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    write = mock.Mock()
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=write))
    print_sentence("done")
    write.assert_called_once_with("dltune: done\n")
    write.side_effect = RuntimeError
    print_sentence("done")


def test_the_hardware_of_a_result_is_read_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    monkeypatch.setattr("autotune.online.result.read_gpus", lambda: ("NVIDIA H100", "NVIDIA H100"))
    hardware = read_hardware()
    assert (hardware.gpu, hardware.gpu_count) == ("NVIDIA H100", 2)
    assert not torch.cuda.is_initialized()


def test_the_hardware_of_a_result_is_that_of_the_host_where_a_launcher_binds_each_process_to_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autotune.system.machine.read_cpu_quota", lambda *folders: None)
    alone = read_hardware()
    monkeypatch.setattr("autotune.system.machine.count_launcher_cpus", lambda: 1 << 10)
    assert read_hardware(4).usable_cpus == 1 << 10
    assert read_hardware() == alone


def order_without_tuning() -> list[int]:
    loader = DataLoader(Waiting(0.0, 3200), 8, shuffle=True, generator=torch.Generator().manual_seed(1))
    return [index for batch in loader for index in batch[:, 0].int().tolist()]


def test_the_switch_in_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLTUNE_AUTOPILOT", "never")
    loader = DataLoader(Waiting())
    assert autopilot(loader) is loader
    assert type(loader) is DataLoader


def test_an_unknown_switch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLTUNE_AUTOPILOT", "maybe")
    with pytest.raises(UsageError, match="is not valid: set it to"):
        autopilot(DataLoader(Waiting()))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: DataLoader(Stream()), "an IterableDataset divides its samples"),
        (lambda: DataLoader(Waiting(), num_workers=1, in_order=False), "in_order=False"),
        (
            lambda: DataLoader(Waiting(), batch_sampler=BatchSampler(Resumable(), 8, False)),
            "a checkpoint of the sampler",
        ),
        (lambda: OwnIteration(Waiting()), "OwnIteration overrides __iter__"),
    ],
    ids=["iterable", "out of order", "resumable", "own __iter__"],
)
def test_a_loader_whose_workers_cannot_change_is_left_with_a_sentence(
    make: Callable[[], DataLoader[Any]], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = make()
    cls = type(loader)
    assert len(list(autopilot(loader))) > 0
    assert type(loader) is cls
    assert reason in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_as_without(workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    found = []
    for is_tuned in (False, True):
        torch.manual_seed(7)
        first, second = (stateful.StatefulDataLoader(Waiting(), 8, shuffle=True, num_workers=workers) for _ in range(2))
        if is_tuned:
            autopilot(first)
            autopilot(second)
        assert first.state_dict()
        batches = iter(first)
        before = [next(batches).tolist() for _ in range(3)]
        second.load_state_dict(first.state_dict())
        found.append([*before, *(batch[:, 0].tolist() for batch in second)])
    assert found[0] == found[1]
    assert len(found[0]) == 8
    assert capsys.readouterr().err == 2 * "dltune: not tuned: StatefulDataLoader overrides __iter__.\n"


def test_without_memory_for_its_counters_the_training_goes_on_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autotune.online.worker.RawArray", mock.Mock(side_effect=OSError("read-only file system")))
    loader = autopilot(DataLoader(Waiting(), 8))
    assert [len(list(loader)) for _ in range(2)] == [8, 8]
    assert type(loader) is DataLoader
    assert capsys.readouterr().err == "dltune: not tuned: OSError: read-only file system.\n"


class Sealed(DataLoader[Any]):
    """A loader whose attributes cannot change."""

    def __setattr__(self, name: str, value: object) -> None:
        if "_iterator" in vars(self):
            raise RuntimeError(f"{name} is sealed")
        super().__setattr__(name, value)


def test_a_loader_whose_class_cannot_change_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(autopilot(Sealed(Waiting(), 8)))) == 8
    sentence = "not tuned: Sealed cannot be derived from (RuntimeError: __class__ is sealed)."
    assert capsys.readouterr().err == f"dltune: {sentence}\n"


class WithLoader(Waiting):
    """Samples that a tuned loader of the dataset loads."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = autopilot(DataLoader(Waiting(length=16), 8), None)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([len(list(self.inner)), type(self.inner) is DataLoader])


def test_a_loader_of_a_dataset_is_plain_in_a_worker(capfd: pytest.CaptureFixture[str]) -> None:
    for batch in DataLoader(WithLoader(), 2, num_workers=1):
        assert batch.tolist() == [[2, True], [2, True]]
    assert capfd.readouterr().err == ""


class Unsized(BatchSampler):
    """Batches whose number is not known before they are drawn."""

    def __len__(self) -> int:
        raise LookupError("it is not known yet")


def test_a_length_that_cannot_be_read_does_not_end_the_training() -> None:
    sampler = Unsized(range(64), batch_size=8, drop_last=False)
    loader: Any = autopilot(DataLoader(Waiting(), batch_sampler=sampler), None)
    iterator = iter(loader)
    with pytest.raises(LookupError, match="not known yet"):
        len(iterator)
    assert sum(len(batch) for batch in iterator) == 64


def test_deterministic_algorithms_keep_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert len(list(autopilot(DataLoader(Waiting(), 8)))) == 8
    finally:
        torch.use_deterministic_algorithms(False)
    assert "not tuned: torch.use_deterministic_algorithms asks for" in capsys.readouterr().err


class OwnIteration(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([1, 2])


@pytest.mark.parametrize("method", ["train_dataloader", "get_train_dataloader"])
def test_the_training_loader_of_a_library_is_tuned(method: str) -> None:
    target = SimpleNamespace(**{method: lambda: DataLoader(Waiting(), 8)})
    assert autopilot(target) is target
    assert hasattr(getattr(target, method)(), "autopilot_state")


def test_a_loader_that_another_one_wraps_is_tuned() -> None:
    wrapper = SimpleNamespace(base_dataloader=DataLoader(Waiting(), 8))
    assert autopilot(wrapper) is wrapper
    assert hasattr(wrapper.base_dataloader, "autopilot_state")


def test_a_target_without_a_training_loader_is_an_error() -> None:
    with pytest.raises(UsageError, match="list has no training loader"):
        autopilot([1, 2, 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_memory": "lots"}, "max_memory: "),
        ({"max_memory": 0.8}, "max_memory=0.8 must be a text"),
        ({"max_workers": 0}, "max_workers=0 must be a whole number of at least 1"),
        ({"max_workers": "4"}, "max_workers='4' must be "),
    ],
    ids=["memory", "number", "workers", "text"],
)
def test_a_limit_that_cannot_be_used_is_an_error_before_the_training(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        autopilot(DataLoader(Waiting()), **options)


def test_a_loader_that_a_library_makes_again_from_its_class_is_tuned() -> None:
    loader = autopilot(DataLoader(Waiting(), 8), quiet=True)
    again = type(loader)(loader.dataset, batch_size=4)
    assert hasattr(again, "autopilot_state")
    assert len(list(again)) == 16


def test_persistent_workers_stay_over_epochs() -> None:
    loader = autopilot(DataLoader(Waiting(), 8, num_workers=2, persistent_workers=True), quiet=True)
    list(loader)
    state: Any = loader.autopilot_state  # type: ignore[attr-defined]  # of the tuned class
    (group,) = state._kept
    first = [worker.pid for worker in group.iterator._workers]
    list(loader)
    assert [worker.pid for worker in state._kept[0].iterator._workers] == first
    assert state.controller.own == WorkerSettings(2, 2)


def test_a_loader_that_was_iterated_over_before_goes_on_as_without() -> None:
    orders = []
    for tuned in (False, True):
        torch.manual_seed(0)
        loader = DataLoader(Waiting(0.0, 64), 8, shuffle=True, num_workers=2, persistent_workers=True)
        next(iter(loader))
        before = len(multiprocessing.active_children())
        if tuned:
            autopilot(loader, None, quiet=True)
        orders.append([index for _ in range(2) for batch in loader for index in batch[:, 0].tolist()])
        assert len(multiprocessing.active_children()) == before
        del loader
        wait_for_ending_workers()
    assert orders[0] == orders[1]


def test_persistent_workers_have_one_iterator() -> None:
    pairs = []
    for tuned in (False, True):
        loader: Any = DataLoader(Waiting(0.0, 64), 8, num_workers=1, persistent_workers=True)
        loader = autopilot(loader, None, quiet=True) if tuned else loader
        pairs.append([(first[0, 0].item(), second[0, 0].item()) for first, second in zip(loader, loader, strict=False)])
    assert pairs[0] == pairs[1] == [(0.0, 8.0), (16.0, 24.0), (32.0, 40.0), (48.0, 56.0)]


def test_a_loader_with_other_workers_is_another_one() -> None:
    state = converge(0.0)
    same, other = DataLoader(Waiting(), 8), DataLoader(Waiting(), 8, num_workers=3)
    state.facts = read_facts(same, 1)
    assert not state.continue_with(other)
    assert state.continue_with(same)


def test_results_are_told_apart_by_the_dataset_of_a_part_its_length_and_its_order() -> None:
    first, second = random_split(Waiting(0.0, 64), [48, 16])
    shuffled = DataLoader(first, batch_sampler=BatchSampler(RandomSampler(first), 8, drop_last=False))
    loaders = [shuffled, DataLoader(second, 8), DataLoader(Waiting(0.0, 16), 8)]
    *found, whole = [read_facts(loader, 1).workload for loader in loaders]
    assert [one.dataset_args for one in found] == [
        {"batch_size": 8, "samples": 48, "shuffle": True},
        {"batch_size": 8, "samples": 16, "shuffle": False},
    ]
    assert {one.dataset for one in found} == {whole.dataset}


class Slotted(DataLoader[Any]):
    __slots__ = ("note",)


def test_a_copy_of_a_loader_whose_class_has_slots_is_tuned_from_its_start() -> None:
    loader: Any = autopilot(Slotted(Waiting(), 8), None, quiet=True)
    loader.note = "kept"
    assert len(list(loader)) == 8
    again: Any = copy.deepcopy(loader)
    assert (again.autopilot_state, again.note) == (None, "kept")
    assert len(list(again)) == 8


@pytest.mark.parametrize(("rate", "workers", "shown"), [(110.0, 4, 110.0), (90.0, 0, 100.0)])
def test_short_epochs_end_with_the_rate_that_the_starts_of_their_workers_leave(
    rate: float, workers: int, shown: float
) -> None:
    loader: Any = autopilot(DataLoader(Waiting(), 8), None, quiet=True)
    assert len(list(loader)) == 8
    state = loader.autopilot_state
    controller, state._windows.are_epochs = state.controller, True
    controller.windows = {WorkerSettings(0, 2): Window(100, 1.0), WorkerSettings(4, 2): Window(120, 1.0)}
    controller.settings, controller.has_converged, controller.watched = WorkerSettings(4, 2), True, Window(rate, 1.0)
    state.finish()
    assert (controller.settings.workers, controller.final_window.rate) == (workers, shown)


class Locked(DataLoader[Any]):
    lock: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}


def test_a_loader_is_copied_by_the_state_that_its_class_gives() -> None:
    loader = Locked(Waiting(), 8)
    loader.lock = threading.Lock()
    again = copy.deepcopy(autopilot(loader, None, quiet=True))
    assert (len(list(again)), again.lock) == (8, None)


@pytest.mark.parametrize("batches", [6, 80], ids=["all under way", "most not under way"])
def test_persistent_workers_change_in_a_short_epoch(batches: int) -> None:
    loader: Any = DataLoader(Waiting(0.0, 8 * batches), 8, num_workers=2, persistent_workers=True)
    autopilot(loader, None, quiet=True)
    list(loader)
    state = loader.autopilot_state
    state.controller.settings = WorkerSettings(3, 2)
    for _ in range(2):
        assert [index for batch in loader for index in batch[:, 0].int().tolist()] == list(range(8 * batches))
    assert sum(group.settings.workers for group in state._kept) == 3
    wait_for_ending_workers()


def test_persistent_workers_end_with_their_loader() -> None:
    wait_for_ending_workers()
    before = len(multiprocessing.active_children())
    loader = autopilot(DataLoader(Waiting(), 8, num_workers=2, persistent_workers=True), quiet=True)
    list(loader)
    assert len(multiprocessing.active_children()) == before + 2
    del loader
    wait_for_ending_workers()
    assert len(multiprocessing.active_children()) == before


def test_a_look_at_a_batch_neither_limits_the_workers_nor_ends_the_tuning() -> None:
    loader: Any = autopilot(DataLoader(Waiting(0.002, 8000), 8), None, quiet=True)
    next(iter(loader))
    for position, _ in enumerate(loader):
        if position == 2:
            next(iter(loader))
        if loader.autopilot_state.controller.settings.workers > 1:
            break
    assert loader.autopilot_state.controller.settings.workers > 1


def test_a_second_iterator_gets_no_workers_beyond_the_limit() -> None:
    loader: Any = autopilot(DataLoader(Waiting(0.002, 8000), 8), None, max_workers=2, quiet=True)
    for _ in loader:
        if loader.autopilot_state.controller.settings.workers == 2:
            break
    iterators = [iter(loader), iter(loader)]
    assert [len(next(one)) for one in iterators] == [8, 8]
    assert len(list_workers()) == 2


def test_a_copy_of_a_loader_that_dltune_run_tunes_is_a_plain_loader() -> None:
    loader: Any = DataLoader(Waiting(), 8, num_workers=1, persistent_workers=True)
    attach(loader, Options(place="train.py:3", quiet=True, profile=None))
    copied = copy.copy(loader)
    assert type(copied) is DataLoader
    assert [len(list(one)) for one in (loader, copied)] == [8, 8]


class Endless(torch.utils.data.Sampler[int]):
    """As many indices as the training takes, though it has a length."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(64))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_look_at_a_batch_does_not_end_an_epoch_beyond_the_length_of_its_loader(workers: int) -> None:
    loader: Any = DataLoader(Waiting(0.001), 8, num_workers=workers, sampler=Endless())
    iterator = iter(autopilot(loader, None, quiet=True))
    taken = []
    for step in range(24):
        taken.append(next(iterator)[0, 0].item())
        if step in (6, 12):
            next(iter(loader))
    assert taken == [step * 8 % 64 for step in range(24)]


def test_the_start_of_workers_is_no_pause_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    start = WorkerGroup.__init__

    def start_slowly(*given: Any, **more: Any) -> None:
        time.sleep(2 * PAUSE_SECONDS)
        start(*given, **more)

    monkeypatch.setattr(WorkerGroup, "__init__", start_slowly)
    loader: Any = autopilot(DataLoader(Waiting(), 8, num_workers=1), None, quiet=True)
    began = time.perf_counter()
    iterator = iter(loader)
    epoch = loader.autopilot_state._epoch
    assert epoch.returned_at > began + 2 * PAUSE_SECONDS  # a pause is counted from then on
    assert epoch.wait_seconds > 2 * PAUSE_SECONDS
    assert len(list(iterator)) == 8


def take_as_lightning(loader: Any, epochs: int) -> list[set[Any]]:
    """Take all batches of each epoch, and see no end; return the workers of each."""
    workers, iterator = [], iter(loader)
    for _ in range(epochs):
        iterator = iter(loader)  # the one before still lives
        for _ in range(len(loader)):
            next(iterator)
        workers.append(set(multiprocessing.active_children()))
    return workers


def test_an_epoch_whose_batches_are_all_taken_has_ended() -> None:
    loader: Any = autopilot(DataLoader(Waiting(0.004, 64), 8), None, quiet=True)
    take_as_lightning(loader, 12)
    assert len(loader.autopilot_state.controller.windows) > 1


def test_persistent_workers_stay_if_the_loop_sees_no_end_and_end_as_lightning_asks() -> None:
    before = set(multiprocessing.active_children())
    loader: Any = autopilot(DataLoader(Waiting(), 8, num_workers=2, persistent_workers=True), None, quiet=True)
    workers = [found - before for found in take_as_lightning(loader, 3)]
    assert workers == [workers[0]] * 3
    assert loader._iterator is not None
    loader._iterator = None
    assert set(multiprocessing.active_children()) <= before
    assert len(list(loader)) == 8
    loader._iterator._shutdown_workers()
    assert set(multiprocessing.active_children()) <= before


def test_a_loop_that_starts_anew_without_an_end_is_tuned() -> None:
    loader: Any = autopilot(DataLoader(Waiting(0.004, 3200), 8), None, quiet=True)
    iterator = iter(loader)
    for step in range(4000):
        if step % 300 == 299:
            iterator = iter(loader)  # while the one before still lives
        next(iterator)
        if len(loader.autopilot_state.controller.windows) > 2:
            break
    assert step > 299


def measure_gpu_steps() -> list[float]:
    """Measure two windows of a GPU that takes 20 ms for each step, for which the loop waits every 20 steps."""
    stats: list[Stats] = []
    loader: Any = autopilot(DataLoader(Waiting(0.004, 3200), 1), None, quiet=True, on_stats=stats.append)
    ends_at = time.perf_counter()
    for step, _ in enumerate(loader, 1):
        ends_at = max(ends_at, time.perf_counter()) + 0.02
        if step % 20 == 0:
            time.sleep(max(0.0, ends_at - time.perf_counter()))
        if len(stats) == 2:
            break
    return [one["data/batches_per_second"] for one in stats]


def test_pauses_that_recur_are_part_of_the_steps_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    tries = (measure_gpu_steps() for _ in range(3))  # a pause of this process is no property of the steps
    assert any(all(40 < rate < 60 for rate in rates) for rates in tries)


def test_a_second_call_changes_where_results_are_reported() -> None:
    first, second = list[Stats](), list[Stats]()
    loader: Any = autopilot(DataLoader(Waiting(0.002, 800), 8), None, quiet=True, on_stats=first.append)
    autopilot(loader, None, quiet=True, on_stats=second.append)
    list(loader)
    assert not first
    assert second


def test_an_ended_iterator_does_not_hold_its_loader() -> None:
    loader = autopilot(DataLoader(Waiting(), 8, num_workers=1), None, quiet=True)
    iterator, found = iter(loader), weakref.ref(loader)
    assert len(list(iterator)) == len(iterator) == 8
    del loader
    wait_for_ending_workers()
    gc.collect()
    assert found() is None
    assert list(iterator) == []


def test_a_process_that_the_training_forks_iterates_as_without_dltune() -> None:
    loader: Any = autopilot(DataLoader(range(8), batch_size=4), None)  # type: ignore[arg-type]
    batches = [batch.tolist() for batch in loader]

    def iterate() -> None:
        assert [batch.tolist() for batch in loader] == batches
        assert type(loader) is DataLoader

    process = multiprocessing.get_context("fork").Process(target=iterate, daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0
