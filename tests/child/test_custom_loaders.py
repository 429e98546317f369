"""The user's class is measured, or the loader that the user's function makes, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from autotune.child.custom_loaders import record_call, replace_new
from autotune.child.loader import StoppableDataLoader, build_loader, build_plain_loader, read_length
from autotune.child.trial import TrialRun
from autotune.child.workload import LoadedWorkload, load_workload
from autotune.config import DataLoaderSettings
from autotune.errors import UsageError
from autotune.protocol.measurement import Measurement
from autotune.protocol.messages import TrialRequest
from autotune.request import Workload, WorkloadRequest
from autotune.runner.runner import TrialRunner
from tests import custom_loaders
from tests.builders import make_config, make_limits
from tests.kept_supervisor import keep_supervisor

ROOT = str(Path(__file__).parents[2])
pytestmark = pytest.mark.usefixtures("leaves_nothing")


def load(kind: str, ends: bool | None = None, **arguments: Any) -> LoadedWorkload:
    """Load a loader of one of the classes of `custom_loaders`, or one of its factories."""
    name, given = ("make", {"kind": kind, **arguments}) if kind[0].isupper() else (kind, arguments)
    return load_workload(WorkloadRequest(dataset=f"tests.custom_loaders:{name}", dataset_args=given), ends)


def load_function(name: str, **arguments: Any) -> LoadedWorkload:
    return load_workload(
        WorkloadRequest(dataset=f"tests.custom_loaders:{name}", dataset_args=arguments, is_loader=True)
    )


def measure(workload: LoadedWorkload, workers: int, batch_size: int | None, **changes: Any) -> Measurement:
    usual: dict[str, Any] = {"epochs": 2, "seconds": 20.0, "precision": 0.5}
    order = TrialRequest(config=make_config(workers, batch_size=batch_size), **usual | changes)
    return TrialRun(workload, lambda batch: time.sleep(2e-3), torch.device("cpu"), order, lambda batches: None).run()


def list_lengths(found: Measurement) -> list[tuple[int, int]]:
    return [(trace.batches, trace.samples) for trace in found.epochs]


# Classes


@pytest.mark.parametrize("workers", [0, 2])
def test_a_class_is_built_with_its_recorded_arguments_and_the_settings(workers: int) -> None:
    loader: Any = build_loader(load("make_positional"), make_config(workers, batch_size=5))
    before = custom_loaders.Doubling.ran
    batch = next(iter(loader))
    assert isinstance(loader, StoppableDataLoader)
    assert isinstance(loader, custom_loaders.Doubling)
    assert custom_loaders.Doubling.ran == before + 1
    assert (loader.num_workers, loader.batch_size, loader.drop_last) == (workers, 5, True)
    assert isinstance(loader.sampler, RandomSampler)
    assert batch[0, 0] % 2 == 0


def test_a_timeout_for_workers_is_dropped_without_workers() -> None:
    workload = load("Doubling", batch_size=4, num_workers=1, timeout=7.0)
    assert len(list(build_loader(workload, make_config(0, batch_size=30)))) == 2
    assert build_loader(workload, make_config(1, batch_size=30)).timeout == 7.0  # type: ignore[union-attr]


def test_loaders_constructed_after_the_factory_are_not_recorded() -> None:
    with replace_new(record_call):
        recorded = DataLoader(custom_loaders.Numbers(), batch_size=4)
    later = custom_loaders.Doubling(custom_loaders.Numbers(), batch_size=4)
    assert vars(recorded).keys() - vars(later).keys() == {"_constructor_call"}
    assert type(later) is custom_loaders.Doubling


def test_a_class_that_overrides_nothing_is_a_plain_one() -> None:
    assert load("OnlyNamed", batch_size=4).own is None


def test_a_class_with_its_own_loop_is_counted_by_the_batches_that_arrive() -> None:
    assert list_lengths(measure(load("DropsEveryThird", batch_size=4), 0, 4)) == [(10, 40)] * 2


@pytest.mark.parametrize("name", ["Doubling", "make_of_settings"])
def test_a_long_epoch_of_a_custom_loader_is_ended_early(name: str) -> None:
    found = measure((load if name[0].isupper() else load_function)(name, samples=100_000), 2, 5)
    assert all(trace.closed_after is not None for trace in found.epochs)
    assert (found.epoch_batches, found.epoch_samples) == (20_000, 100_000)


def test_a_method_that_collates_is_that_of_the_rebuilt_loader_also_in_a_spawned_worker() -> None:
    config = make_config(1, batch_size=30)
    process = config.process.model_copy(update={"multiprocessing_context": "spawn"})
    loader = build_loader(load("make_collating"), config.model_copy(update={"process": process}))
    numbers = torch.cat([batch[:, 0] for batch in loader])
    assert sorted(numbers.tolist()) == [3.0 * number for number in range(custom_loaders.SAMPLES)]


def test_a_function_of_any_settings_sets_the_start_and_the_start_method_of_workers_itself() -> None:
    workload = load_function("make_with_own_init")
    assert workload.fixed == {"worker_threads": None}
    config = make_config(1, batch_size=4)
    process = config.process.model_copy(update={"multiprocessing_context": "spawn"})
    loader: Any = build_loader(workload, config.model_copy(update={"process": process}))
    assert (loader.num_workers, loader.worker_init_fn) == (1, custom_loaders.seed_worker)
    assert loader.multiprocessing_context is None
    request = WorkloadRequest(dataset="tests.custom_loaders:make_with_own_init", is_loader=True, start_method="spawn")
    with pytest.raises(UsageError, match=r"multiprocessing_context=spawn: .* does not take it"):
        load_workload(request)


def test_settings_that_a_class_does_not_accept_are_left_to_it() -> None:
    workload = load("PicksItsPrefetch", num_workers=1)
    left = {"prefetch_factor": 5, "persistent_workers": True, "pin_memory": False, "in_order": True}
    assert workload.fixed == {**left, "worker_threads": None}
    assert "Settings that it does not accept: prefetch_factor=5" in (workload.note or "")
    loader: Any = build_loader(workload, make_config(2, 5, 6))
    assert (loader.num_workers, loader.batch_size) == (2, 6)


@pytest.mark.parametrize("workers", [0, 2])
def test_whole_epochs_of_a_loader_that_never_restarts_have_its_own_length(workers: int) -> None:
    workload = load("NeverRestarting", batch_size=4, shuffle=True)
    assert not build_plain_loader(workload, 4).ends_with_sampler
    assert read_length(build_plain_loader(workload, 4)) == 15
    found = measure(workload, workers, 4, epochs=3, precision=0.0)
    assert list_lengths(found) == [(15, 60)] * 3
    assert [trace.closed_after for trace in found.epochs] == [None, None, None]


def test_a_long_epoch_of_a_loader_that_never_restarts_is_abandoned() -> None:
    found = measure(load("NeverRestarting", samples=100_000, batch_size=4), 2, 4)
    assert all(trace.closed_after == trace.batches for trace in found.epochs)
    assert [trace.samples for trace in found.epochs] == [4 * trace.batches for trace in found.epochs]
    assert found.epoch_batches == 25_000


@pytest.mark.parametrize("ends", [True, False])
def test_no_epoch_is_run_to_see_whether_it_ends_with_the_sampler_if_that_is_known(ends: bool) -> None:
    before = custom_loaders.Doubling.ran
    assert build_plain_loader(load("Doubling", ends, batch_size=4), 4).ends_with_sampler is ends
    assert custom_loaders.Doubling.ran == before
    assert build_plain_loader(load("Doubling", batch_size=4), 4).ends_with_sampler
    assert custom_loaders.Doubling.ran == before + 1


def test_a_process_that_follows_the_probe_runs_no_epoch_but_that_of_the_trial(tmp_path: Path) -> None:
    arguments = {"kind": "NotesEpochs", "note": str(tmp_path / "epochs"), "batch_size": 8}
    request = WorkloadRequest(
        dataset="tests.custom_loaders:make", dataset_args=arguments, step_seconds=1e-3, working_dir=ROOT
    )
    order = TrialRequest(config=make_config(0, batch_size=8), epochs=1, seconds=2.0, new_process=True)
    with TrialRunner(request, stall_seconds=60.0, supervisor=keep_supervisor()) as runner:
        runner.probe((8, 8), make_limits(max_workers=0))
        (tmp_path / "epochs").unlink()
        assert runner.run(order).status == "completed"
    assert (tmp_path / "epochs").read_text().split() == ["0"]


# Wrappers


def test_the_loader_inside_a_wrapper_of_accelerate_is_measured() -> None:
    batches = [list(range(first, first + 5)) for first in range(0, custom_loaders.SAMPLES, 5)]
    workload = load("Shard", batch_sampler=batches, num_workers=1)
    assert workload.baseline is not None
    assert (workload.baseline.dataloader.num_workers, workload.batching) == (1, "user")
    assert "the DataLoader inside tests.custom_loaders.Shard" in (workload.note or "")
    assert list_lengths(measure(workload, 2, None)) == [(12, 60), (12, 60)]


def test_a_batch_size_of_the_dataset_itself_is_unchanged() -> None:
    dataset = custom_loaders.Numbers()
    vars(dataset)["batch_size"] = 12  # as streamed datasets have
    workload = LoadedWorkload(parts=Workload(dataset=dataset))
    assert workload.fixed == {"batch_size": 12}
    assert build_plain_loader(workload, 4).batch_size == 12


# Refused loaders


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TakesNothing", r"custom_loaders\.TakesNothing, whose __init__ does not accept num_workers\..*--loader"),
        ("make_with_other_class", r"Doubling, which overrides __iter__, and dltune did not see its.*--loader"),
    ],
)
def test_a_loader_that_cannot_be_rebuilt_is_refused_with_a_remedy(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(name)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("IgnoresWorkers", r"given num_workers=0 and made a loader with 1\. Pass num_workers on .*--loader"),
        ("PassesTwice", r"failed with .*: .*multiple values for keyword argument 'pin_memory'\. .*--loader"),
    ],
)
def test_a_class_that_does_not_pass_a_setting_on_is_refused_when_it_is_built(kind: str, words: str) -> None:
    workload = load(kind, batch_size=4)
    with pytest.raises(UsageError, match=words):
        build_plain_loader(workload, 4)


# Functions of the settings


def test_the_loader_of_default_arguments_is_the_baseline() -> None:
    workload = load_function("make_of_settings")
    assert workload.baseline is not None
    assert workload.baseline.dataloader == DataLoaderSettings(batch_size=6)
    left = {"pin_memory": False, "persistent_workers": False, "in_order": True}
    assert workload.fixed == {**left, "worker_threads": None}


def test_threads_are_limited_in_workers_of_a_loader_that_takes_a_worker_init_fn() -> None:
    assert load("Doubling", batch_size=4).fixed == {}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_is_called_with_the_settings_that_it_accepts(workers: int) -> None:
    loader: Any = build_loader(load_function("make_of_settings", samples=20), make_config(workers, batch_size=5))
    assert isinstance(loader, custom_loaders.Doubling)
    assert (loader.num_workers, loader.batch_size, len(list(loader))) == (workers, 5, 4)


def test_the_first_batch_shows_a_batch_size_that_neither_the_signature_nor_the_loader_tells() -> None:
    found = load_function("make_batches_of_settings").baseline
    assert found is not None
    assert found.dataloader.batch_size == 12


def test_a_process_that_knows_the_workload_does_not_read_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_loaders.Batches, "__iter__", lambda self: pytest.fail("it was read"))
    request = WorkloadRequest(dataset="tests.custom_loaders:make_batches_of_settings", is_loader=True)
    assert load_workload(request, ends_with_sampler=False).baseline is not None


@pytest.mark.parametrize("name", ["Batches", "make_generator"])
def test_a_loader_of_another_library_is_iterated_and_a_generator_is_made_again_for_each_epoch(name: str) -> None:
    workload = load_function(name, batches=5)
    assert workload.baseline is not None
    assert workload.baseline.dataloader.batch_size == 8
    assert "num_workers" in workload.fixed
    assert list_lengths(measure(workload, 0, 16)) == [(5, 80), (5, 80)]


def test_an_iterator_that_restarts_by_itself_is_not_made_again() -> None:
    loader = build_loader(load_function("Restarting"), make_config(0, batch_size=10))
    made = custom_loaders.Restarting.made
    assert [sum(1 for _ in loader) for _ in range(3)] == [6, 6, 6]
    assert custom_loaders.Restarting.made == made


def test_an_endless_loader_is_abandoned() -> None:
    found = measure(load_function("make_generator", batches=10**9), 0, 8, seconds=0.5)
    assert found.epoch_batches is None
    assert found.epochs[0].closed_after == found.epochs[0].batches


def test_required_settings_are_those_of_a_loader_without_workers() -> None:
    workload = load_function("make_without_defaults")
    assert workload.baseline is not None
    assert workload.baseline.dataloader == DataLoaderSettings(batch_size=32)
    assert len(list(build_loader(workload, make_config(0, batch_size=30)))) == 2


def test_a_function_sets_the_size_of_batches_that_its_dataset_makes() -> None:
    workload = load_function("make_of_ready_batches")
    assert workload.baseline is not None
    assert (workload.batching, workload.baseline.dataloader.batch_size) == ("batch_size", 8)
    assert list_lengths(measure(workload, 1, 16)) == [(5, 80), (5, 80)]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("make_nothing", {}, r"make_nothing returned an int\. Return one loader"),
        ("make_fixed", {}, r"make_fixed: it takes none of the settings .* --dataset tests\.custom_loaders:make_fixed"),
        ("SAMPLES", {}, r"--loader tests\.custom_loaders:SAMPLES: an int, not a function"),
        ("Batches", {"batch": 3}, r"unexpected keyword argument 'batch'.* arguments are batch_size, batches:"),
        ("make", {}, r"missing a required argument: 'kind'.*--arg NAME=VALUE"),
    ],
)
def test_what_makes_no_loader_is_refused(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_function(name, **arguments)


def test_a_function_that_does_not_pass_its_settings_on_is_refused() -> None:
    workload = load_function("make_ignoring_settings")
    with pytest.raises(UsageError, match="was given batch_size=16 and made a loader with 4"):
        build_loader(workload, make_config(0, batch_size=16))


def test_a_function_may_start_fewer_workers_and_not_more() -> None:
    assert build_loader(load_function("make_with_limits", most=2), make_config(5)).num_workers == 2
    with pytest.raises(UsageError, match="was given num_workers=1 and made a loader with 2"):
        build_loader(load_function("make_with_limits", least=2), make_config(1))


def test_threads_that_a_loader_of_another_library_leaves_are_gone_in_the_next_trial() -> None:
    request = WorkloadRequest(
        dataset="tests.custom_loaders:LeavesThreads", is_loader=True, step_seconds=1e-3, working_dir=ROOT
    )
    order = TrialRequest(config=make_config(0, batch_size=8), epochs=1, seconds=2.0)
    with TrialRunner(request, stall_seconds=60.0, supervisor=keep_supervisor()) as runner:
        runner.limit(make_limits())
        assert [runner.run(order).status for _ in range(2)] == ["completed", "completed"]
