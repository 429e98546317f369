"""Training code gets the profile for its machine, and a loader with the tuned settings."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing import get_sharing_strategy, set_sharing_strategy
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from autotune.config import ProcessSettings
from autotune.errors import ProfileError, UsageError
from autotune.profiles.load import TunedLoader, load
from autotune.profiles.loaders import make_worker_init
from autotune.profiles.schema import TunedProfile
from autotune.request import Workload
from autotune.system.machine import Accelerator, Hardware, read_gpus, read_machine
from autotune.system.software import RANKS
from tests.builders import make_config, make_machine, make_profile, write_profiles
from tests.custom_loaders import PicksItsPrefetch, make_of_settings, make_with_own_init, seed_worker

DATA: Any = range(10)


class Wraps(IterableDataset[Any]):
    """A loader that is an IterableDataset, as webdataset's WebLoader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def make(batch_size: int) -> DataLoader[int]:
    return DataLoader(DATA, batch_size)


@pytest.fixture(autouse=True)
def single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*RANKS, "LOCAL_RANK", "SLURM_STEP_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


def make_hardware_here(**changes: Any) -> Hardware:
    gpus = read_gpus()
    gpu = Accelerator(name=gpus[0], count=len(gpus)) if gpus else None
    return read_machine().hardware(gpu).model_copy(update=changes)


def make_here(usable_cpus: float | None = None, **changes: Any) -> TunedProfile:
    """Build a profile of this machine, or of one with so many CPUs."""
    cpus = {} if usable_cpus is None else {"usable_cpus": usable_cpus}
    return make_profile(hardware=make_hardware_here(**cpus), **changes)


# Loading


def test_a_profile_of_this_machine_is_used_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load(write_profiles(tmp_path, make_here(usable_cpus=10_000.0), make_here()))
    assert (found.fit, found.config) == ("exact", make_here().config)


def test_a_profile_of_a_larger_machine_is_scaled_down_with_a_warning_that_names_the_difference(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_here(10_000.0, dataloader=make_config(4000, 2).dataloader))
    with pytest.warns(UserWarning, match=r"was tuned on another machine: CPUs 10000 → [\d.]+\. Using") as caught:
        found = load(path)
    assert [one.filename for one in caught] == [__file__]
    assert found.fit == "scaled_down"
    assert found.config.dataloader.num_workers < 4000


def test_the_same_machine_with_a_small_dev_shm_gets_fewer_batches_with_a_warning(tmp_path: Path) -> None:
    """Docker gives a container 64 MiB of /dev/shm whatever the machine; too many batches there are a bus error."""
    here = make_hardware_here()
    larger = here.model_copy(update={"shm_limit_bytes": 2**50})
    samples = make_profile().workload.model_copy(update={"sample_bytes": here.shm_limit_bytes // 64})
    with pytest.warns(UserWarning, match="/dev/shm 1024 TiB → "):
        found = load(write_profiles(tmp_path, make_profile(hardware=larger, workload=samples)))
    assert found.config.dataloader.num_workers == 0


def test_on_mismatch_error_raises_and_default_returns_pytorchs_defaults(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_here(10_000.0))
    with pytest.raises(ProfileError, match="tuned on another machine"):
        load(path, on_mismatch="error")
    found = load(path, on_mismatch="default")
    assert (found.fit, found.config) == ("default", make_config(0, batch_size=64))
    with pytest.raises(UsageError, match="'ignore' is not one of warn, error, default"):
        load(path, on_mismatch="ignore")  # type: ignore[arg-type]  # this is the mistake under test


def make_for_processes(processes: int, workers: int) -> TunedProfile:
    profile = make_here(dataloader=make_config(workers).dataloader)
    return profile.model_copy(update={"workload": profile.workload.model_copy(update={"nproc_per_node": processes})})


def test_the_number_of_processes_is_read_from_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_profiles(tmp_path, make_for_processes(4, 3), make_for_processes(1, 5))
    assert load(path).config.dataloader.num_workers == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (load(path).config.dataloader.num_workers, load(path).fit) == (3, "exact")
    assert load(path, nproc_per_node=1).config.dataloader.num_workers == 5


def test_a_profile_for_one_process_is_divided_among_several_with_a_warning(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_for_processes(1, 12))
    with pytest.warns(UserWarning, match=r"was tuned for one training process on the host, not for 4\."):
        found = load(path, nproc_per_node=4)
    assert (found.fit, found.config.dataloader.num_workers) == ("scaled_down", 3)
    with pytest.raises(ProfileError, match=r"not for 4\. Retune here"):
        load(path, nproc_per_node=4, on_mismatch="error")


def test_processes_that_a_launcher_bound_to_their_cpus_keep_their_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make_machine(affinity_cpus=8)
    monkeypatch.setattr("autotune.profiles.load.read_machine", lambda: machine)
    monkeypatch.setattr("autotune.system.machine.count_launcher_cpus", lambda: 32)
    profile = make_profile(hardware=machine.hardware(None), dataloader=make_config(12).dataloader)
    with pytest.warns(UserWarning, match="not for 4"):
        assert load(write_profiles(tmp_path, profile), nproc_per_node=4).config.dataloader.num_workers == 12


def test_loading_a_profile_and_setting_workers_up_import_nothing_heavy(tmp_path: Path) -> None:
    code = f"import sys, autotune; autotune.load({str(write_profiles(tmp_path, make_here()))!r}); heavy = "
    code += "{'torch', 'optuna', 'click', 'rich', 'numpy', 'jinja2', 'filelock'}; print(heavy & sys.modules.keys())"
    assert run(code) == ["set()"]
    code = "import sys; import autotune.profiles.loaders; print({'pydantic', 'torch'} & sys.modules.keys())"
    assert run(code) == ["set()"]  # as in the setup of spawned workers


# Using


@pytest.fixture
def sharing_strategy() -> Iterator[None]:
    before = get_sharing_strategy()
    yield
    set_sharing_strategy(before)


def make_tuned(**changes: Any) -> TunedLoader:
    profile = make_profile(**changes)
    return TunedLoader(profile, profile.config, "exact")


@pytest.fixture
def one_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_cpu", "sharing_strategy")
def test_torch_does_not_warn_of_more_workers_than_cpus_that_were_measured() -> None:
    tuned = make_tuned()
    assert len(list(tuned.make_loader(DATA))) == len(list(tuned.apply_to(DataLoader(DATA, batch_size=64))))


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.usefixtures("sharing_strategy")
class TestMakeLoader:
    def test_a_loader_is_no_dataset(self) -> None:
        with pytest.raises(UsageError, match="make_loader takes a dataset; pass a DataLoader to apply_to"):
            make_tuned().make_loader(DataLoader(DATA))  # type: ignore[arg-type]  # as users may

    @pytest.mark.parametrize("stored", [DataLoader(DATA), [DataLoader(DATA)]])
    def test_a_loader_of_another_library_is_no_dataset(self, stored: Any) -> None:
        class Prefetching(IterableDataset[Any]):
            def __init__(self) -> None:
                self.loader = stored

            def __iter__(self) -> Iterator[Any]:
                return iter(self.loader)

        with pytest.raises(UsageError, match=r"Prefetching contains a DataLoader: `\.loader`\. Pass the function"):
            make_tuned().make_loader(Prefetching())

    def test_a_factory_may_keep_the_loader_that_it_made(self) -> None:
        class Factory:
            def __call__(self, **settings: Any) -> DataLoader[Any]:
                self.last = DataLoader(DATA, **settings)
                return self.last

        factory = Factory()
        assert [make_tuned().make_loader(factory).num_workers for _ in range(2)] == [4, 4]

    def test_a_dataset_gets_no_loader_of_the_class_that_was_tuned(self) -> None:
        tuned = make_tuned()
        workload = tuned.profile.workload.model_copy(update={"loader_class": "mine.Loader"})
        tuned = replace(tuned, profile=tuned.profile.model_copy(update={"workload": workload}))
        with pytest.warns(UserWarning, match=r"a plain DataLoader, but mine\.Loader was tuned: pass that") as caught:
            assert type(tuned.make_loader(DATA)) is DataLoader
        assert caught[0].filename == __file__

    def test_a_function_that_returns_a_dataset_makes_no_loader(self) -> None:
        for source in (lambda: TensorDataset(torch.arange(3)), lambda: Workload(dataset=DATA)):
            with pytest.raises(UsageError, match=r"returns a (TensorDataset|Workload), not a loader: pass the dataset"):
                make_tuned().make_loader(source)
        for nothing in (None, "data:make_dataset", Workload(dataset=DATA)):
            with pytest.raises(
                UsageError, match="make_loader takes a dataset, or a function that makes the loader, not"
            ):
                make_tuned().make_loader(nothing)  # type: ignore[arg-type]  # as users may

    def test_settings_that_a_class_or_function_does_not_take_are_named(self) -> None:
        with pytest.warns(UserWarning, match=r"make does not accept these .* not used: num_workers=4, ") as caught:
            loader = make_tuned().make_loader(partial(make), batch_size=5)
        assert (loader.num_workers, loader.batch_size, caught[0].filename) == (0, 5, __file__)

    def test_a_function_that_does_not_take_a_setup_of_workers_loses_their_limit_of_threads(self) -> None:
        tuned = make_tuned(process=ProcessSettings(worker_threads=1))
        with pytest.warns(UserWarning, match="not used: worker_threads=1"):
            tuned.make_loader(lambda num_workers, **_: DataLoader(DATA, num_workers=num_workers))

    def test_a_loader_may_be_an_iterable_dataset(self) -> None:
        loader = make_tuned(dataloader=make_config(0, batch_size=3).dataloader).make_loader(
            lambda **settings: Wraps(DataLoader(DATA, **settings))
        )
        assert len(list(loader)) == 4

    def test_it_makes_a_loader_with_the_tuned_settings_and_the_tuned_strategy(self) -> None:
        loader = make_tuned(process=ProcessSettings(sharing_strategy="file_system")).make_loader(DATA, shuffle=True)
        assert (loader.num_workers, loader.batch_size, loader.persistent_workers) == (4, 64, True)
        assert get_sharing_strategy() == "file_system"
        make_tuned().make_loader(DATA)
        assert get_sharing_strategy() == "file_system"  # as the caller chose it: none was tuned

    def test_a_profile_without_a_batch_size_needs_one_for_a_dataset(self) -> None:
        tuned = make_tuned(dataloader=make_config(0, batch_size=None).dataloader)
        with pytest.raises(UsageError, match="no batch size: pass batch_size or batch_sampler"):
            tuned.make_loader(DATA, shuffle=True)
        assert tuned.make_loader(DATA, batch_size=5).batch_size == 5
        assert tuned.make_loader(DATA, batch_size=None).batch_size is None

    def test_a_profile_without_a_batch_size_keeps_that_of_the_users_loader(self) -> None:
        tuned = make_tuned(dataloader=make_config(2, batch_size=None).dataloader)
        own_batches = BatchSampler(SequentialSampler(DATA), batch_size=3, drop_last=False)
        for loader in (DataLoader(DATA, batch_size=3), DataLoader(DATA, batch_sampler=own_batches)):
            again = tuned.apply_to(loader)
            assert (again.num_workers, len(again)) == (2, len(loader))

    def test_arguments_of_the_caller_replace_those_of_a_loader(self) -> None:
        tuned = make_tuned(dataloader=make_config(0).dataloader)
        batches = BatchSampler(SequentialSampler(DATA), batch_size=3, drop_last=False)
        ordered, batched = DataLoader(DATA, batch_size=2), DataLoader(DATA, batch_sampler=batches)
        more: Any = TensorDataset(torch.arange(1000))
        assert isinstance(tuned.apply_to(ordered, shuffle=True).sampler, RandomSampler)
        assert [len(batch) for batch in tuned.apply_to(ordered, batch_sampler=batches)] == [3, 3, 3, 1]
        assert [len(batch) for batch in tuned.apply_to(batched, batch_size=5)] == [5, 5]
        shuffled = DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), batch_size=3, drop_last=True))
        again = tuned.apply_to(shuffled, batch_size=4)
        assert (type(again.sampler), again.drop_last, again.batch_size) == (RandomSampler, True, 4)
        own_batches = DataLoader(DATA, batch_sampler=[[3, 1], [2]])
        assert list(tuned.apply_to(own_batches, batch_size=5, shuffle=False))[1].tolist() == [5, 6, 7, 8, 9]
        with pytest.raises(UsageError, match="pass shuffle or sampler with batch_size"):
            tuned.apply_to(own_batches, batch_size=5)
        for loader in (ordered, DataLoader(DATA, batch_size=2, shuffle=True)):
            again = tuned.apply_to(loader, dataset=more)
            assert type(again.sampler) is type(loader.sampler)
            assert len(torch.cat([batch for (batch,) in again]).unique()) == 1000
        with pytest.raises(UsageError, match="pass sampler or batch_sampler, too"):
            tuned.apply_to(batched, dataset=more)

    def test_a_prepared_loader_is_refused_with_the_way_to_tune_it(self) -> None:
        prepared = DataLoader(DATA)
        prepared.base_dataloader = DataLoader(DATA)  # as accelerate's class has
        with pytest.raises(UsageError, match=r"Use accelerator\.prepare\(tuned\.apply_to\(loader\)\)"):
            make_tuned().apply_to(prepared)

    def test_a_measured_number_of_workers_gives_no_warning(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make_tuned(dataloader=make_config(4000).dataloader).make_loader(DATA)
        assert caught == []

    def test_arguments_of_the_caller_replace_the_tuned_ones(self) -> None:
        sampler = BatchSampler(SequentialSampler(DATA), batch_size=3, drop_last=False)
        tuned = make_tuned(dataloader=make_config(0).dataloader)
        assert [len(batch) for batch in tuned.make_loader(DATA, batch_size=5)] == [5, 5]
        assert [len(batch) for batch in tuned.make_loader(DATA, batch_sampler=sampler)] == [3, 3, 3, 1]
        assert [len(batch) for batch in make_tuned().make_loader(DATA, num_workers=0)] == [10]

    def test_a_loader_class_or_function_gets_the_settings_that_it_accepts(self) -> None:
        tuned = make_tuned(dataloader=make_config(2, batch_size=3).dataloader)
        loader = tuned.make_loader(PicksItsPrefetch, dataset=DATA)
        assert (type(loader), loader.num_workers, loader.batch_size) == (PicksItsPrefetch, 2, 3)
        assert (loader.prefetch_factor, loader.persistent_workers) == (5, True)
        spawned = make_tuned(process=ProcessSettings(multiprocessing_context="spawn"))
        loader = spawned.make_loader(make_with_own_init)  # its `**settings` are those that trials passed
        assert loader.worker_init_fn is seed_worker
        plain = make_tuned(dataloader=make_config(0, batch_size=7).dataloader)
        loader = plain.make_loader(make_of_settings, samples=14)
        assert (loader.num_workers, loader.prefetch_factor, len(loader)) == (0, None, 2)

    def test_spawned_workers_set_the_strategy_before_the_callers_own_setup_runs(self) -> None:
        seen: list[tuple[int, str]] = []
        process = ProcessSettings(sharing_strategy="file_system", multiprocessing_context="spawn")
        loader = make_tuned(process=process).make_loader(
            DATA, worker_init_fn=lambda worker: seen.append((worker, get_sharing_strategy()))
        )
        set_sharing_strategy("file_descriptor")  # what a spawned worker starts with
        assert loader.worker_init_fn is not None
        loader.worker_init_fn(3)
        assert seen == [(3, "file_system")]

    @pytest.mark.parametrize("before", ["", "multiprocessing.set_start_method('spawn')"])
    def test_it_does_not_decide_the_start_method_and_respects_the_chosen_one(self, before: str) -> None:
        code = f"""
import multiprocessing
from torch.utils.data import TensorDataset
from tests.profiles.test_load import make_tuned
{before}
loader = make_tuned().make_loader(TensorDataset())
is_forked = loader.worker_init_fn is None
multiprocessing.set_start_method("spawn", force={bool(before)})  # raises where it has been decided
print(is_forked == ({not before} and multiprocessing.get_all_start_methods()[0] == "fork"))
"""
        assert run(code) == ["True"]


# Workers


def run(code: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_forked_workers_need_a_setup_only_to_limit_threads() -> None:
    assert make_worker_init(ProcessSettings(), print, are_forked=True) is print
    assert make_worker_init(ProcessSettings(worker_threads=1), print, are_forked=True) is not print


def test_threads_are_limited_by_variables_and_by_the_functions_of_imported_libraries() -> None:
    code = "import os, sys, types\ncv2 = types.ModuleType('cv2'); cv2.setNumThreads = lambda n: print('cv2', n)\n"
    code += "sys.modules['cv2'] = cv2\nfrom autotune.profiles.loaders import limit_threads; limit_threads(3)\n"
    assert run(code + "print(os.environ['RAYON_NUM_THREADS'], os.environ['OMP_NUM_THREADS'])") == ["cv2", "3", "3", "3"]


def test_torch_is_limited_too_and_the_users_own_function_is_called_last() -> None:
    code = "import torch; from autotune.profiles.loaders import set_up_worker\n"
    code += "set_up_worker('file_system', 1, lambda worker: print(torch.get_num_threads(), worker), 7)"
    assert run(code) == ["1", "7"]
