"""Nothing is measured that will not train: the user's class, or what the user's function makes, and nothing else."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.child.custom_loaders import record_constructor_calls as note_constructor_calls
from autotune.child.loader import StoppableDataLoader
from autotune.child.loader import build_loader, build_plain_loader, count_epoch_batches
from autotune.child.probe import warn_of_validation_data
from autotune.child.probe_batches import MAX_LOADED_BATCHES, load_batches
from autotune.child.trial import TrialRun
from autotune.child.workload import LoadedWorkload, load_workload
from autotune.config import DataLoaderSettings
from autotune.errors import UsageError
from autotune.protocol.measurement import Measurement
from autotune.protocol.messages import TrialRequest
from autotune.request import WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.workload import Workload
from tests import own_loaders
from tests.builders import make_config, make_limits
from tests.kept_server import KeptStarter

PATIENCE_OF_TORCH_SECONDS = 5.0  # with a worker that was not told to end
ROOT = str(Path(__file__).parents[2])
pytestmark = pytest.mark.usefixtures("leaves_nothing")


def load(name: str, *, is_loader: bool = False, **arguments: Any) -> LoadedWorkload:
    return load_workload(
        WorkloadRequest(dataset=f"tests.own_loaders:{name}", dataset_args=arguments, is_loader=is_loader)
    )


def measure(workload: LoadedWorkload, workers: int, batch_size: int | None, **changes: Any) -> Measurement:
    usual: dict[str, Any] = {"epochs": 2, "seconds": 20.0, "precision": 0.5}
    order = TrialRequest(config=make_config(workers, batch_size=batch_size), **usual | changes)
    return TrialRun(workload, lambda batch: time.sleep(2e-3), torch.device("cpu"), order, lambda batches: None).run()


# How a loader was made


def test_a_class_is_made_again_by_the_arguments_that_it_was_given_whether_by_place_or_by_name() -> None:
    workload = load("make_doubling")
    assert workload.own is not None
    call: Any = workload.own.call
    assert call.cls is own_loaders.Doubling
    assert {name: call.arguments[name] for name in ("batch_size", "shuffle", "num_workers", "drop_last")} == {
        "batch_size": 4,
        "shuffle": True,
        "num_workers": 1,
        "drop_last": True,
    }


def test_what_was_set_on_a_loader_after_it_was_made_is_set_on_each_that_is_made_again() -> None:
    workload = load("make_changed")
    loader = build_loader(workload, make_config(2, batch_size=5))
    assert isinstance(loader, own_loaders.Doubling)
    assert (loader.timeout, loader.collate_fn) == (7.0, own_loaders.stack_twice)
    assert loader.worker_init_fn is workload.parts.worker_init_fn is own_loaders.start_worker
    assert len(next(iter(build_loader(workload, make_config(0, batch_size=5))))) == 10


def test_an_argument_of_its_class_that_was_set_afterwards_is_set_again() -> None:
    loader = build_plain_loader(load("make_changed_collating"), 4)
    assert max(batch[:, 0].max().item() for batch in loader) == 5.0 * (own_loaders.SAMPLES - 1)


def test_what_a_constructor_sets_by_itself_is_left_to_it() -> None:
    call: Any = getattr(load("make_collating").own, "call", None)
    assert call.changed == {}
    assert load("make_never_restarting").own is not None


def test_a_collate_function_that_is_asked_for_wins_over_one_that_was_set() -> None:
    asked = WorkloadRequest(dataset="tests.own_loaders:make_changed", collate="torch:stack")
    assert len(next(iter(build_loader(load_workload(asked), make_config(0, batch_size=5))))) == 5


def test_a_timeout_for_workers_goes_where_there_are_none() -> None:
    assert len(list(build_loader(load("make_timed"), make_config(0, batch_size=30)))) == 2


def test_a_class_is_after_the_factory_as_it_was_before() -> None:
    before = vars(own_loaders.CollatesItself)["__init__"]
    load("make_collating")
    load("make_doubling")
    assert vars(own_loaders.CollatesItself)["__init__"] is before
    assert "__init__" not in vars(own_loaders.Doubling)


def test_loaders_made_after_the_factory_are_as_they_were_before() -> None:
    with note_constructor_calls() as calls:
        DataLoader(own_loaders.Numbers(), batch_size=4)
    later = own_loaders.Doubling(own_loaders.Numbers(), batch_size=4)
    assert calls.find(later) is None
    assert type(later) is own_loaders.Doubling
    assert len(list(later)) == 15


def test_a_class_that_only_has_further_methods_is_a_plain_one() -> None:
    assert load("make_named").own is None


# What is measured


@pytest.mark.parametrize("workers", [0, 2])
def test_the_class_that_runs_is_the_users_own(workers: int) -> None:
    workload = load("make_doubling")
    loader = build_loader(workload, make_config(workers, batch_size=5))
    before = own_loaders.Doubling.ran
    batch = next(iter(loader))
    assert isinstance(loader, own_loaders.Doubling)
    assert isinstance(loader, StoppableDataLoader)
    assert own_loaders.Doubling.ran == before + 1
    assert (loader.num_workers, loader.batch_size, loader.drop_last) == (workers, 5, True)
    assert batch[0, 0] % 2 == 0


def test_a_loader_that_reads_ahead_in_the_main_process_has_lost_no_batch() -> None:
    _, times, samples = load_batches(load("make_reading_ahead"), 4, lambda phase: None)
    assert len(times) == MAX_LOADED_BATCHES
    assert samples == [4] * len(times)


def test_a_loader_that_leaves_batches_out_is_counted_by_what_arrives() -> None:
    found = measure(load("make_dropping"), 0, 4)
    assert [(trace.batches, trace.samples) for trace in found.epochs] == [(10, 40), (10, 40)]


def test_a_long_epoch_of_a_users_class_is_ended_early() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_loaders, "SAMPLES", 100_000)
        patch.setattr(own_loaders.Numbers.__init__, "__defaults__", (100_000,))
        found = measure(load("make_doubling"), 2, 4)
    assert all(trace.closed_after is not None for trace in found.epochs)
    assert found.epoch_batches == 25_000


def test_a_loader_whose_own_method_collates_is_the_one_that_collates() -> None:
    loader = build_plain_loader(load("make_collating"), 4)
    numbers = torch.cat([batch[:, 0] for batch in loader])
    assert sorted(numbers.tolist()) == [3.0 * number for number in range(own_loaders.SAMPLES)]


def test_a_loader_travels_to_a_spawned_worker_as_the_users_class() -> None:
    workload = load("make_collating")
    config = make_config(1, batch_size=30)
    spawned = config.model_copy(
        update={"process": config.process.model_copy(update={"multiprocessing_context": "spawn"})}
    )
    assert len(list(build_loader(workload, spawned))) == 2


def test_settings_that_a_class_decides_by_itself_are_left_to_it() -> None:
    workload = load("make_picky")
    assert workload.fixed == {"prefetch_factor": 5, "persistent_workers": True, "pin_memory": False, "in_order": True}
    assert workload.own is not None
    assert "It decides by itself: prefetch_factor=5" in workload.own.describe()
    loader = build_loader(workload, make_config(2, 5, 6))
    assert isinstance(loader, StoppableDataLoader)
    assert (loader.num_workers, loader.batch_size) == (2, 6)


# Loaders that never restart their workers


@pytest.mark.parametrize("workers", [0, 2])
def test_whole_epochs_of_a_loader_that_never_restarts_have_the_length_it_says(workers: int) -> None:
    workload = load("make_never_restarting")
    assert workload.own is not None
    assert not workload.own.ends_with_sampler
    found = measure(workload, workers, 4, epochs=3, precision=0.0)
    assert [trace.batches for trace in found.epochs] == [15, 15, 15]
    assert [trace.samples for trace in found.epochs] == [60, 60, 60]
    assert [trace.closed_after for trace in found.epochs] == [None, None, None]


def test_a_long_epoch_of_a_loader_that_never_restarts_is_left_where_it_is() -> None:
    found = measure(load("make_never_restarting", samples=100_000), 2, 4)
    assert all(trace.closed_after == trace.batches for trace in found.epochs)
    assert [trace.samples for trace in found.epochs] == [4 * trace.batches for trace in found.epochs]
    assert found.epoch_batches == 25_000


def test_the_workers_of_an_iterator_that_knows_its_loader_end_when_the_trial_does() -> None:
    order = TrialRequest(
        config=make_config(2, batch_size=4, persistent_workers=True), epochs=2, seconds=20.0, precision=0.5
    )
    run = TrialRun(load("make_known"), lambda batch: None, torch.device("cpu"), order, lambda batches: None)
    run.run()
    started = time.monotonic()
    run.end_workers()
    assert time.monotonic() - started < PATIENCE_OF_TORCH_SECONDS
    assert not multiprocessing.active_children()


# What is refused


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("make_unsettable", r"own_loaders\.TakesNothing, which lets nobody set num_workers.*--loader"),
        ("make_by_hand", r"own_loaders\.Doubling, which has its own __iter__.*did not see how it was made.*--loader"),
        ("make_wrapped", r"own_loaders\.Wraps, which holds a DataLoader: `\.pipeline\[0\]`.*a loader by itself"),
    ],
)
def test_what_cannot_be_measured_as_it_trains_is_refused_with_a_way_out(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(name)


def test_a_batch_size_that_the_dataset_has_by_itself_stays() -> None:
    workload = LoadedWorkload(parts=Workload(dataset=own_loaders.HasBatchSize()))
    assert workload.fixed == {"batch_size": 12}
    assert build_plain_loader(workload, 4).batch_size == 12


# Functions of the settings


def test_what_a_function_makes_by_itself_is_the_baseline() -> None:
    workload = load("make_of_settings", is_loader=True)
    assert workload.baseline is not None
    assert workload.baseline.dataloader == DataLoaderSettings(batch_size=6)
    assert workload.fixed == {"pin_memory": False, "persistent_workers": False, "in_order": True}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_is_called_with_the_settings_that_it_takes(workers: int) -> None:
    loader = build_loader(load("make_of_settings", is_loader=True, samples=20), make_config(workers, batch_size=5))
    assert isinstance(loader, own_loaders.Doubling)
    assert (loader.num_workers, loader.batch_size, len(list(loader))) == (workers, 5, 4)


def test_a_long_epoch_of_what_a_function_makes_is_ended_early() -> None:
    found = measure(load("make_of_settings", is_loader=True, samples=100_000), 2, 5)
    assert all(trace.closed_after is not None for trace in found.epochs)
    assert (found.epoch_batches, found.epoch_samples) == (20_000, 100_000)


def test_a_loader_of_another_library_is_gone_through_epoch_by_epoch() -> None:
    workload = load("make_batches", is_loader=True, batches=5)
    assert workload.baseline is not None
    assert workload.baseline.dataloader.batch_size == 8
    assert "num_workers" in workload.fixed
    found = measure(workload, 0, 16)
    assert [(trace.batches, trace.samples) for trace in found.epochs] == [(5, 80), (5, 80)]


def test_a_generator_is_made_anew_for_each_epoch() -> None:
    found = measure(load("make_generator", is_loader=True), 0, 8)
    assert [trace.batches for trace in found.epochs] == [5, 5]


def test_what_never_ends_is_left() -> None:
    found = measure(load("make_endless", is_loader=True), 0, 8, seconds=0.5)
    assert found.epoch_batches is None
    assert found.epochs[0].closed_after == found.epochs[0].batches


def test_a_function_is_given_what_it_must_be_given_as_a_loader_without_workers_takes_it() -> None:
    workload = load("make_without_defaults", is_loader=True)
    assert workload.baseline is not None
    assert workload.baseline.dataloader == DataLoaderSettings(batch_size=32)
    assert len(list(build_loader(workload, make_config(0, batch_size=30)))) == 2


def test_a_function_whose_dataset_makes_the_batches_sets_their_size() -> None:
    workload = load("make_of_ready_batches", is_loader=True)
    assert workload.baseline is not None
    assert (workload.batching, workload.baseline.dataloader.batch_size) == ("batch_size", 8)
    found = measure(workload, 1, 16)
    assert [(trace.batches, trace.samples) for trace in found.epochs] == [(5, 80), (5, 80)]


def test_a_function_that_makes_nothing_to_go_through_is_refused() -> None:
    with pytest.raises(UsageError, match=r"make_nothing returned a int\. Return one loader"):
        load("make_nothing", is_loader=True)


def test_a_function_that_does_not_hand_its_settings_on_is_refused() -> None:
    workload = load("make_deaf", is_loader=True)
    with pytest.raises(UsageError, match="was given batch_size=16 and made a loader with 4: it must hand it on"):
        build_loader(workload, make_config(0, batch_size=16))


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--loader tests\.own_loaders:SAMPLES: a int, not a function"):
        load("SAMPLES", is_loader=True)


def test_the_length_of_a_loader_is_what_it_says_itself() -> None:
    workload = load("make_never_restarting")
    assert count_epoch_batches(build_plain_loader(workload, 4), workload) == 15


def test_what_a_foreign_loader_leaves_behind_is_gone_in_the_next_trial() -> None:
    request = WorkloadRequest(
        dataset="tests.own_loaders:make_leaving_threads", is_loader=True, step_seconds=1e-3, working_dir=ROOT
    )
    order = TrialRequest(config=make_config(0, batch_size=8), epochs=1, seconds=2.0)
    with TrialRunner(request, stall_seconds=60.0, starter=KeptStarter(ROOT)) as runner:
        runner.limit(make_limits())
        assert [runner.run(order).kind for _ in range(2)] == ["completed", "completed"]


# What may not be meant


def test_a_loader_that_does_not_shuffle_is_asked_whether_it_is_for_validation() -> None:
    assert "it is not shuffled" in (warn_of_validation_data(load("make_named")) or "")
    assert warn_of_validation_data(load("make_doubling")) is None


@pytest.mark.parametrize(("name", "value", "words"), [("train", False, "`train` is False"), ("split", "val", "'val'")])
def test_a_dataset_that_says_it_is_not_for_training_is_asked_about(name: str, value: Any, words: str) -> None:
    dataset = own_loaders.Numbers()
    setattr(dataset, name, value)
    assert words in (warn_of_validation_data(LoadedWorkload(parts=Workload(dataset=dataset))) or "")
