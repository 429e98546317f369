from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing import get_sharing_strategy, set_sharing_strategy
from torch.utils.data import BatchSampler, SequentialSampler

from autotune.config import ProcessSettings
from autotune.errors import ProfileError
from autotune.profiles.clamp import clamp_config
from autotune.profiles.identity import WorkloadIdentity
from autotune.profiles.load import TunedLoader, load
from autotune.profiles.schema import TunedProfile
from autotune.profiles.selection import describe_local_hardware, select_profile
from autotune.system.gpus import read_gpus
from autotune.system.hardware import Accelerator, Hardware
from autotune.system.machine import read_machine
from tests.builders import MIB, make_config, make_machine, make_profile, write_files, write_profiles
from tests.own_loaders import PicksItsPrefetch, make_of_settings

DATA: Any = range(10)
NOW = datetime(2026, 5, 1, tzinfo=UTC)


def make_hardware_here(**changes: Any) -> Hardware:
    gpus = read_gpus()
    gpu = Accelerator(name=gpus[0], count=len(gpus)) if gpus else None
    return read_machine().hardware(gpu).model_copy(update=changes)


def make_smaller_hardware() -> Hardware:
    """Describe a machine that this one can stand in for."""
    here = make_hardware_here()
    return here.model_copy(update={"memory_limit_bytes": here.memory_limit_bytes - MIB, "cpu": "Older CPU"})


def make_larger_hardware() -> Hardware:
    """Describe a machine that has more CPUs than this one."""
    return make_hardware_here(usable_cpus=10_000.0)


# Choosing


def test_a_profile_of_this_very_machine_is_preferred_to_a_newer_one_that_merely_fits(tmp_path: Path) -> None:
    exact = make_profile("here", hardware=make_hardware_here())
    fitting = make_profile("there", hardware=make_smaller_hardware(), created_at=NOW)
    found = load(write_profiles(tmp_path, fitting, exact))
    assert (found.profile.name, found.fit) == ("here", "exact")
    assert found.config == exact.config


def test_the_newest_of_equally_fitting_profiles_is_taken(tmp_path: Path) -> None:
    old = make_profile("old", hardware=make_hardware_here(), created_at=NOW)
    new = make_profile("new", hardware=make_hardware_here(), created_at=NOW + timedelta(days=1))
    assert load(write_profiles(tmp_path, new, old)).profile.name == "new"


def test_a_profile_of_a_smaller_machine_fits_without_a_warning(tmp_path: Path) -> None:
    found = load(write_profiles(tmp_path, make_profile("there", hardware=make_smaller_hardware())))
    assert found.fit == "compatible"


def test_a_profile_of_a_larger_machine_is_clamped_with_a_warning_that_says_what_differs(tmp_path: Path) -> None:
    larger = make_profile("big", hardware=make_larger_hardware(), dataloader=make_config(4000, 2).dataloader)
    with pytest.warns(UserWarning, match=r"profile big .* CPUs [\d.]+ instead of 10000"):
        found = load(write_profiles(tmp_path, larger))
    assert found.fit == "clamped"
    assert found.config.dataloader.num_workers < 4000


def test_a_profile_for_a_gpu_that_is_not_here_does_not_fit(tmp_path: Path) -> None:
    elsewhere = make_profile("gpu", hardware=make_hardware_here(gpu="NVIDIA Z9000", gpu_count=1))
    with pytest.warns(UserWarning, match="instead of NVIDIA Z9000"):
        assert load(write_profiles(tmp_path, elsewhere)).fit == "clamped"


@pytest.mark.parametrize(
    ("gpu", "file"),
    [
        ("NVIDIA GeForce RTX 4090", "dxg"),  # in WSL
        ("Tesla T4", "dxg"),
        ("AMD Instinct MI300X", "kfd"),
        ("AMD Radeon RX 7900 XTX", "kfd"),
        ("xpu", "dri/renderD128"),
    ],
)
def test_an_accelerator_that_only_torch_can_name_is_the_profiles_where_its_device_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, file: str
) -> None:
    profile = make_profile(hardware=make_machine().hardware(Accelerator(name=gpu, count=2)))
    assert describe_local_hardware(make_machine(), profile, gpus=(), dev=tmp_path).gpu is None
    write_files(tmp_path, {file: ""})
    assert describe_local_hardware(make_machine(), profile, gpus=(), dev=tmp_path) == profile.hardware
    assert describe_local_hardware(make_machine(), profile, gpus=("NVIDIA A100",), dev=tmp_path).gpu == "NVIDIA A100"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert describe_local_hardware(make_machine(), profile, gpus=(), dev=tmp_path).gpu is None


def test_the_device_of_another_maker_is_not_that_of_the_profile(tmp_path: Path) -> None:
    profile = make_profile(hardware=make_machine().hardware(Accelerator(name="NVIDIA A100", count=1)))
    write_files(tmp_path, {"kfd": "", "dri/renderD128": ""})
    assert describe_local_hardware(make_machine(), profile, gpus=(), dev=tmp_path).gpu is None


def test_on_mismatch_error_refuses_a_profile_of_another_machine(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile("big", hardware=make_larger_hardware()))
    with pytest.raises(ProfileError, match="tuned on another machine"):
        load(path, on_mismatch="error")


def test_on_mismatch_default_gives_torchs_defaults_at_the_tuned_batch_size(tmp_path: Path) -> None:
    found = load(write_profiles(tmp_path, make_profile("big", hardware=make_larger_hardware())), on_mismatch="default")
    assert found.fit == "default"
    assert found.config == make_config(0, batch_size=64)


def make_for_ranks(name: str, ranks: int, **changes: Any) -> TunedProfile:
    """Build a profile of this very machine that was tuned for so many training processes."""
    profile = make_profile(name, hardware=make_hardware_here(), **changes)
    return profile.model_copy(update={"workload": profile.workload.model_copy(update={"local_world_size": ranks})})


def test_a_profile_for_as_many_training_processes_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_profiles(tmp_path, make_for_ranks("four", 4), make_for_ranks("one", 1, created_at=NOW))
    assert load(path).profile.name == "one"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (load(path).profile.name, load(path).fit) == ("four", "exact")
    assert load(path, local_world_size=1).profile.name == "one"


def test_a_profile_for_one_process_is_shared_out_among_several_with_a_warning(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_for_ranks("one", 1, dataloader=make_config(12, 2).dataloader))
    with pytest.warns(UserWarning, match=r"profile one was tuned for 1 training processes on the host, not for 4\."):
        found = load(path, local_world_size=4)
    assert (found.fit, found.config.dataloader.num_workers) == ("clamped", 3)
    with pytest.raises(ProfileError, match=r"not for 4\. Retune here"):
        load(path, local_world_size=4, on_mismatch="error")


def test_a_profile_for_several_processes_gives_one_of_them_no_more_than_it_had(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_for_ranks("four", 4, dataloader=make_config(3, 2).dataloader))
    with pytest.warns(UserWarning, match="tuned for 4 training processes"):
        assert load(path, local_world_size=1).config.dataloader.num_workers == 3


def test_a_named_profile_is_taken_even_when_another_fits_better(tmp_path: Path) -> None:
    exact = make_profile("here", hardware=make_hardware_here())
    fitting = make_profile("there", hardware=make_smaller_hardware())
    assert load(write_profiles(tmp_path, exact, fitting), profile="there").profile.name == "there"


def test_an_unknown_name_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="'c'; it holds a, b"):
        load(write_profiles(tmp_path, make_profile("a"), make_profile("b")), profile="c")


def test_a_file_without_profiles_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="dltune --dataset"):
        load(write_profiles(tmp_path))


def test_a_time_without_its_zone_gives_a_profile_or_a_profile_error(tmp_path: Path) -> None:
    profiles = (make_profile("a", hardware=make_hardware_here()), make_profile("b", hardware=make_hardware_here()))
    path = write_profiles(tmp_path, *profiles)
    document = json.loads(path.read_text())
    document["profiles"][0]["created_at"] = "2026-01-01T00:00:00"
    path.write_text(json.dumps(document))
    try:
        assert load(path).fit == "exact"
    except ProfileError as error:
        assert "created_at" in str(error)  # noqa: PT017  # both outcomes are right


# Clamping


def test_fewer_open_files_alone_do_not_cost_a_waiting_dataset_its_workers() -> None:
    profile = make_profile(dataloader=make_config(12, 2, 64).dataloader)
    machine = make_machine(nofile_limit=512, affinity_cpus=4)
    assert clamp_config(profile, machine).dataloader.num_workers == 12


def test_workers_shrink_with_memory_and_with_open_files() -> None:
    profile = make_profile(dataloader=make_config(12, 2, 64).dataloader)
    result = profile.result.model_copy(update={"peak_host_bytes": 8 * 1024 * MIB})
    profile = profile.model_copy(update={"result": result})
    poor = make_machine(memory_limit_bytes=5 * 1024 * MIB, affinity_cpus=4)
    assert clamp_config(profile, poor).dataloader.num_workers == 6
    assert clamp_config(profile, make_machine(nofile_limit=160, affinity_cpus=4)).dataloader.num_workers == 4


@given(
    workers=st.integers(0, 64),
    prefetch=st.integers(1, 16),
    sample_bytes=st.integers(0, 2**22),
    shm=st.integers(0, 2**32),
    cpus=st.floats(0.1, 64),
)
def test_a_clamped_configuration_is_legal_and_keeps_its_share_of_the_cpus_and_fits_shm(
    workers: int, prefetch: int, sample_bytes: int, shm: int, cpus: float
) -> None:
    profile = make_profile(
        dataloader=make_config(workers, prefetch, 64).dataloader,
        workload=WorkloadIdentity(dataset="a:b", samples=None, sample_bytes=sample_bytes, step="built-in"),
    )
    machine = make_machine(affinity_cpus=64, quota_cpus=cpus, shm_limit_bytes=shm)
    loader = clamp_config(profile, machine).dataloader
    assert loader.num_workers <= workers
    assert loader.num_workers <= workers * cpus / profile.hardware.usable_cpus + 1
    if loader.num_workers:
        assert (loader.num_workers * (loader.prefetch_factor or 0) + 2) * 64 * sample_bytes <= shm


def test_clamping_gives_up_batches_ahead_before_workers() -> None:
    profile = make_profile(
        dataloader=make_config(4, 8, 64).dataloader,
        workload=WorkloadIdentity(dataset="a:b", samples=None, sample_bytes=MIB // 64, step="built-in"),
    )
    loader = clamp_config(profile, make_machine(shm_limit_bytes=16 * MIB)).dataloader
    assert (loader.num_workers, loader.prefetch_factor) == (4, 2)


def test_a_configuration_that_fits_is_not_clamped() -> None:
    profile = make_profile(dataloader=make_config(4, 2, 64, in_order=False, persistent_workers=True).dataloader)
    assert clamp_config(profile, make_machine(affinity_cpus=4)) == profile.config


# Using


@pytest.fixture
def sharing_strategy() -> Iterator[None]:
    before = get_sharing_strategy()
    yield
    set_sharing_strategy(before)


def make_tuned(**changes: Any) -> TunedLoader:
    profile = make_profile(**changes)
    return TunedLoader(profile, profile.config, "exact")


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.usefixtures("sharing_strategy")
class TestMakeLoader:
    def test_it_builds_a_loader_with_the_tuned_settings_and_the_tuned_strategy(self) -> None:
        loader = make_tuned(process=ProcessSettings(sharing_strategy="file_system")).make_loader(DATA, shuffle=True)
        assert (loader.num_workers, loader.batch_size, loader.persistent_workers) == (4, 64, True)
        assert get_sharing_strategy() == "file_system"

    def test_what_the_caller_gives_wins_over_what_was_tuned(self) -> None:
        loader = make_tuned(dataloader=make_config(0).dataloader).make_loader(DATA, batch_size=5)
        assert [len(batch) for batch in loader] == [5, 5]

    def test_a_batch_sampler_of_the_caller_replaces_the_tuned_batch_size(self) -> None:
        sampler = BatchSampler(SequentialSampler(DATA), batch_size=3, drop_last=False)
        loader = make_tuned(dataloader=make_config(0).dataloader).make_loader(DATA, batch_sampler=sampler)
        assert [len(batch) for batch in loader] == [3, 3, 3, 1]

    def test_a_caller_who_debugs_without_workers_gets_a_loader_without_workers(self) -> None:
        loader = make_tuned().make_loader(DATA, num_workers=0)
        assert sum(len(batch) for batch in loader) == 10

    def test_a_class_of_loaders_is_made_with_the_settings_that_it_takes(self) -> None:
        tuned = make_tuned(dataloader=make_config(2, batch_size=3).dataloader)
        loader = tuned.make_loader(PicksItsPrefetch, dataset=DATA)
        assert (type(loader), loader.num_workers, loader.batch_size) == (PicksItsPrefetch, 2, 3)
        assert (loader.prefetch_factor, loader.persistent_workers) == (5, True)

    def test_a_function_makes_the_loader_of_the_settings_that_it_takes(self) -> None:
        loader = make_tuned(dataloader=make_config(0, batch_size=7).dataloader).make_loader(
            make_of_settings, samples=14
        )
        assert (loader.num_workers, loader.prefetch_factor, len(loader)) == (0, None, 2)

    def test_what_the_users_loader_decides_is_not_among_its_arguments(self) -> None:
        workload = make_profile().workload.model_copy(update={"loader_class": "m.L", "loader_decides": ("in_order",)})
        kwargs = make_tuned(workload=workload).loader_kwargs()
        assert "in_order" not in kwargs
        assert kwargs["num_workers"] == 4

    def test_spawned_workers_are_told_the_strategy_before_the_callers_own_setup_runs(self) -> None:
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
    def test_it_leaves_the_start_method_to_the_training_script_and_keeps_to_what_that_chose(self, before: str) -> None:
        code = f"""
import multiprocessing
from torch.utils.data import TensorDataset
from autotune.profiles.worker_init import WorkerSetup
from tests.profiles.test_load import make_tuned
{before}
loader = make_tuned().make_loader(TensorDataset())
is_forked = loader.worker_init_fn is None
multiprocessing.set_start_method("spawn", force={bool(before)})  # raises where it has been decided
print(is_forked == ({not before} and multiprocessing.get_all_start_methods()[0] == "fork"))
"""
        shown = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
        assert shown.stdout.strip() == "True"

    def test_forked_workers_keep_the_callers_own_setup_as_it_is(self) -> None:
        def setup(worker: int) -> None: ...

        loader = make_tuned(process=ProcessSettings(multiprocessing_context="fork")).make_loader(
            DATA, worker_init_fn=setup
        )
        assert loader.worker_init_fn is setup


# Choosing one to export


def test_the_only_profile_is_chosen_wherever_it_was_tuned(tmp_path: Path) -> None:
    only = make_profile("a", hardware=make_larger_hardware())
    assert select_profile(write_profiles(tmp_path, only)) == only


def test_of_several_profiles_the_one_of_a_machine_like_this_is_chosen(tmp_path: Path) -> None:
    here = make_profile("here", hardware=make_hardware_here())
    newer = make_profile("elsewhere", hardware=make_larger_hardware(), created_at=NOW)
    assert select_profile(write_profiles(tmp_path, newer, here)) == here


def test_of_several_foreign_profiles_none_is_chosen_without_its_name(tmp_path: Path) -> None:
    foreign = [make_profile(name, hardware=make_larger_hardware()) for name in ("a", "b")]
    path = write_profiles(tmp_path, *foreign)
    with pytest.raises(ProfileError, match=r"holds a, b; none was tuned for a machine like this.*--profile"):
        select_profile(path)
    assert select_profile(path, "b") == foreign[1]


def test_a_warning_about_unknown_fields_points_at_the_line_that_loads(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile("here", hardware=make_hardware_here()))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"novelty": 1}))
    with pytest.warns(UserWarning, match="novelty") as seen:
        load(path)
    assert [warning.filename for warning in seen] == [__file__]
