"""Profiles share a name exactly where they share a place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.profiles.file import read_file
from autotune.profiles.matching import compare_hardware
from autotune.profiles.naming import GENERATED_NAME, is_same_target, make_profile_name, resolve_profile_name
from autotune.profiles.schema import TunedProfile
from autotune.search.warm_start import rebuild_request
from autotune.tuning import tune
from tests.builders import GIB, make_hardware, make_machine, make_profile, make_request, make_software
from tests.test_tuning import Bench, saturating, waiting_workload
from tests.test_tuning import make_request as make_run


def make_named(name: str = "cpu-4c-16g-0000", **hardware: Any) -> TunedProfile:
    return make_profile(name, hardware=make_hardware(**hardware), request=make_request().record())


def change_workload(profile: TunedProfile, **changes: Any) -> TunedProfile:
    return profile.model_copy(update={"workload": profile.workload.model_copy(update=changes)})


def test_a_name_tells_accelerators_cpus_and_memory() -> None:
    assert make_profile_name(make_named()).startswith("cpu-4c-16g-")
    gpu = "NVIDIA H100 80GB HBM3"
    small = make_named(gpu=gpu, gpu_count=2, usable_cpus=0.5, memory_limit_bytes=GIB // 2)
    assert make_profile_name(small).startswith("h100x2-0.5c-512m-")


@pytest.mark.parametrize(
    "hardware",
    [
        {"memory_limit_bytes": 12 * GIB},
        {"memory_limit_bytes": int(16.4 * GIB)},
        {"shm_limit_bytes": 64 * 2**20},
        {"shm_limit_bytes": 0},
        {"nofile_limit": 4096},
        {"usable_cpus": 2.0},
        {"gpu": "NVIDIA A100 80GB PCIe", "gpu_count": 1},
    ],
)
def test_machines_that_differ_in_what_decides_give_profiles_of_different_names(hardware: dict[str, Any]) -> None:
    assert any(
        difference.requires_retune for difference in compare_hardware(make_hardware(), make_hardware(**hardware))
    )
    assert make_profile_name(make_named(**hardware)) != make_profile_name(make_named())


def test_two_models_of_one_family_have_different_names() -> None:
    names = {make_profile_name(make_named(gpu=f"NVIDIA A100 {kind}", gpu_count=1)) for kind in ("80GB", "SXM4-40GB")}
    assert len(names) == 2
    assert all(name.startswith("a100x1-") for name in names)


@pytest.mark.parametrize(
    "changes", [{"dataset": "pkg:other"}, {"split": "train"}, {"step": "pkg:step"}, {"sample_bytes": 8192}]
)
def test_workloads_that_differ_in_what_decides_give_profiles_of_different_names(changes: dict[str, Any]) -> None:
    assert make_profile_name(change_workload(make_named(), **changes)) != make_profile_name(make_named())


def test_another_start_method_gives_another_name() -> None:
    spawned = make_software().model_copy(update={"start_method": "spawn"})
    assert make_profile_name(make_named().model_copy(update={"software": spawned})) != make_profile_name(make_named())


def test_other_arguments_of_the_dataset_give_another_name_and_another_folder_does_not() -> None:
    names = []
    for changes in ({}, {"dataset_args": {"root": "/b"}}, {"working_dir": "/elsewhere"}):
        request = make_request()
        workload = request.workload.model_copy(update=changes)
        asked = request.model_copy(update={"workload": workload}).record()
        names.append(make_profile_name(make_named().model_copy(update={"request": asked})))
    assert names[0] == names[2] != names[1]


def test_what_only_advises_does_not_change_the_name() -> None:
    newer = make_software().model_copy(update={"torch": "3.0", "python": "3.14.0"})
    other = make_named(cpu="Another CPU").model_copy(update={"software": newer})
    assert make_profile_name(other) == make_profile_name(make_named())


@settings(derandomize=True)  # digits may be the same by chance
@given(was=st.integers(0, 2**50), now=st.integers(0, 2**50))
def test_no_two_amounts_that_matching_tells_apart_share_a_name(was: int, now: int) -> None:
    there, here = make_named(memory_limit_bytes=was), make_named(memory_limit_bytes=now)
    assert is_same_target(there, here) or make_profile_name(there) != make_profile_name(here)


@pytest.mark.parametrize("name", ["cpu-4c-16g-0000", "cpu-4c-d945", "h100x1-12c-a41f"])
def test_a_profile_takes_the_place_of_one_that_is_alike_whatever_step_it_lies_on(name: str) -> None:
    earlier = make_named(name, memory_limit_bytes=int(16 * GIB * 0.985))
    assert resolve_profile_name(make_named(), [earlier]).name == name


def test_of_several_that_are_alike_the_one_of_its_own_name_is_replaced() -> None:
    own = make_profile_name(make_named())
    assert resolve_profile_name(make_named(), [make_named("cpu-4c-d945"), make_named(own)]).name == own


def test_a_profile_whose_digest_is_that_of_another_workload_takes_a_longer_one_and_keeps_it() -> None:
    stranger = change_workload(make_named(make_profile_name(make_named())), dataset="pkg:other")
    named = resolve_profile_name(make_named(), [stranger])
    assert named.name == make_profile_name(make_named(), digits=9)
    assert GENERATED_NAME.fullmatch(named.name)
    assert resolve_profile_name(make_named(), [stranger, named]).name == named.name
    assert resolve_profile_name(make_named(), [named]).name == named.name


def test_a_profile_that_was_named_by_hand_is_left_alone() -> None:
    assert not GENERATED_NAME.fullmatch("mine")
    assert resolve_profile_name(make_named(), [make_named("mine")]).name == make_profile_name(make_named())


@pytest.mark.parametrize("hardware", [{"memory_limit_bytes": 8 * GIB}, {"shm_limit_bytes": GIB}])
def test_a_smaller_machine_leaves_the_profile_of_a_larger_one_in_the_file(
    workdir: Path, hardware: dict[str, Any]
) -> None:
    here = make_machine(affinity_cpus=2)
    for machine in (here, replace(here, **hardware)):
        tune(make_run(), run_trial=Bench(saturating), machine=machine, workload=waiting_workload())
    assert len({profile.name for profile in read_file(workdir / "dltune.json").profiles}) == 2


def test_tuning_and_tuning_anew_on_one_machine_keep_one_profile_of_one_name(workdir: Path) -> None:
    names = []
    earlier: TunedProfile | None = None
    for size in (int(16 * GIB * 0.985), 16 * GIB, int(16 * GIB * 0.985)):  # alike, and on two steps of the digest
        here = make_machine(affinity_cpus=2, memory_limit_bytes=size)
        request = make_run() if earlier is None else rebuild_request(earlier, here.hardware(None), "dltune.json")
        found = tune(request, run_trial=Bench(saturating), machine=here, workload=waiting_workload(), earlier=earlier)
        names.append(found.profile.name)
        earlier = found.profile if earlier is None else None  # cold, warm, cold
    assert len(set(names)) == 1
    (profile,) = read_file(workdir / "dltune.json").profiles
    assert len(profile.history) == 2


def test_another_processor_alone_does_not_take_a_profile_its_name() -> None:
    profile = make_named("mine")
    here = profile.hardware.model_copy(update={"cpu": "Another CPU"})
    assert rebuild_request(profile, here, "dltune.json").profile == "mine"
