from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ProfileError
from autotune.profiles.load import compare, compare_age, describe_here, scale_down, select_profile
from autotune.profiles.schema import TunedProfile, WorkloadIdentity
from autotune.system.software import TorchVersion
from tests.builders import (
    GIB,
    MIB,
    make_config,
    make_hardware,
    make_machine,
    make_profile,
    make_profile_result,
    make_request,
    make_search_record,
    make_software,
    write_profiles,
)

HERE = make_hardware(memory_limit_bytes=16 * GIB, shm_limit_bytes=8 * GIB)
GPU = {"gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 1}
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def make_identity(**changes: Any) -> WorkloadIdentity:
    usual: dict[str, Any] = {"dataset": "a:b", "samples": 1000, "sample_bytes": 4096, "step": "built-in"}
    return WorkloadIdentity(**usual | changes)


# Comparing


def make_facts(**changes: Any) -> tuple[Any, Any]:
    """Return the hardware, software or workload of a profile, and the same with changes."""
    facts = (HERE, make_software(), make_identity())
    was = next(one for one in facts if changes.keys() <= type(one).model_fields.keys())
    return was, was.model_copy(update=changes)


@pytest.mark.parametrize(
    ("changes", "words", "retune"),
    [
        ({"usable_cpus": 2.5}, "CPUs 4 → 2.5", True),
        ({"memory_limit_bytes": 8 * GIB}, "memory 16.0 GiB → 8.0 GiB", True),
        ({"nofile_limit": 256}, "open files 1,024 → 256", True),
        ({"gpu": "NVIDIA H100"}, "GPU none → NVIDIA H100", True),
        ({"cpu": "Newer"}, "processor Test CPU → Newer", False),
        ({"torch": "2.14.0"}, "torch 2.13.0 → 2.14.0", False),
        ({"start_method": "forkserver"}, "start method fork → forkserver", True),
        ({"sample_bytes": 8192}, "sample size 4.0 KiB → 8.0 KiB", True),
        ({"samples": 9000}, "samples 1,000 → 9,000", True),
    ],
)
def test_a_difference_has_both_values_and_requires_retuning_or_informs(
    changes: dict[str, Any], words: str, retune: bool
) -> None:
    assert compare(make_facts(**changes)) == [(words, retune)]


@pytest.mark.parametrize(
    "changes",
    [{}, {"memory_limit_bytes": 16 * GIB - 100 * MIB}, {"sample_bytes": 4200}, {"samples": 1200}, {"samples": None}],
)
def test_small_differences_and_an_unknown_length_are_none(changes: dict[str, Any]) -> None:
    was, here = make_facts(**changes)
    assert compare((was, here), (here, was)) == []


def test_a_profile_can_be_too_old() -> None:
    for days, limit in ((20, 30 * 86400.0), (4000, None), (4000, 1e300), (4000, 1e16)):
        assert compare_age(NOW - timedelta(days=days), NOW, limit) == []
    old = compare_age(NOW - timedelta(days=40), NOW, 30 * 86400.0)
    assert old == [("age 40 days: 10 days more than 30 days", True)]
    assert compare_age(NOW + timedelta(minutes=20), NOW, 86400.0) == []
    (future,) = compare_age(NOW + timedelta(days=2), NOW, 86400.0)
    assert re.fullmatch(r"created at .*, which is in the future: check the clock", future.text)


# Selecting


def make_for(dataset: str = "data:make_dataset", **changes: Any) -> TunedProfile:
    hardware = changes.pop("hardware", make_machine().hardware(None))
    return make_profile(
        workload=make_identity(dataset=dataset, **changes.pop("workload", {})), hardware=hardware, **changes
    )


def select(folder: Path, *profiles: TunedProfile, name: str | None = None, **arguments: Any) -> TunedProfile:
    return select_profile(write_profiles(folder, *profiles), name, **{"machine": make_machine()} | arguments)


@pytest.mark.parametrize(("cpus", "nearest"), [(4, 4), (6, 8), (16, 16), (32, 16), (1, 4)])
def test_the_profile_of_the_nearest_machine_is_selected_not_the_newest(tmp_path: Path, cpus: int, nearest: int) -> None:
    profiles = [
        make_for(hardware=make_hardware(usable_cpus=float(size)), created_at=NOW - timedelta(days=size))
        for size in (4, 8, 16)
    ]
    found = select(tmp_path, *profiles, machine=make_machine(affinity_cpus=cpus))
    assert found.hardware.usable_cpus == nearest


@pytest.mark.parametrize(
    ("wanted", "other"),
    [
        ({"hardware": make_hardware(usable_cpus=64.0)}, {"hardware": make_hardware(**GPU), "created_at": NOW}),
        ({}, {"is_complete": False, "created_at": NOW}),
        ({"created_at": NOW}, {"created_at": NOW - timedelta(days=1)}),
        ({"workload": {"nproc_per_node": 4}}, {"created_at": NOW}),
    ],
    ids=["the same accelerator", "validated", "newest", "as many processes"],
)
def test_the_better_of_two_profiles_is_selected(tmp_path: Path, wanted: dict[str, Any], other: dict[str, Any]) -> None:
    processes = wanted.get("workload", {}).get("nproc_per_node", 1)
    profiles = make_for(**dict(other)), make_for(**dict(wanted))
    assert select(tmp_path, *profiles, nproc_per_node=processes) == profiles[1]


@pytest.mark.parametrize("name", ["a:b", "a:b [train]", "mine", "cpu-4c-16g/mine", "cpu-4c-16g"])
def test_a_profile_is_found_by_workload_title_label_id_and_machine_class(tmp_path: Path, name: str) -> None:
    wanted = make_for("a:b", workload={"split": "train"}, label="mine")
    other = make_for("c:d", hardware=make_hardware(usable_cpus=64.0))
    assert select(tmp_path, other, wanted, name=name) == wanted
    assert select(tmp_path, other, wanted, name=other.workload.id) == other


def test_a_file_with_several_workloads_needs_a_name_and_lists_them(tmp_path: Path) -> None:
    profiles = (make_for("data:make_dataset"), make_for("other:make_dataset"))
    words = r'data:make_dataset, other:make_dataset\. Name one with profile="data:make_dataset"'
    with pytest.raises(ProfileError, match=words):
        select(tmp_path, *profiles)
    with pytest.raises(ProfileError, match="has no profile 'c'; it has data:make_dataset, other:make_dataset"):
        select(tmp_path, *profiles, name="c")


def test_a_tuned_profile_is_selected_beside_the_result_of_a_training_run(tmp_path: Path) -> None:
    tuned = make_for("data:make_dataset")
    trained = [
        make_for(f"data:{name}", search=make_search_record(sampler="training")) for name in ("Train", "Validation")
    ]
    assert select(tmp_path, trained[0], tuned, trained[1]) == tuned
    assert select(tmp_path, trained[0], tuned, name="data:Train") == trained[0]
    with pytest.raises(ProfileError, match="data:Train, data:Validation"):
        select(tmp_path, *trained)


@pytest.mark.parametrize(
    ("field", "values", "names"),
    [
        ("dataset_args", ({"n": 9, "root": "a"}, {"n": 9, "root": "b"}), ["(root='a')", "(root='b')"]),
        ("dataset_args", ({}, {"root": "b"}), ["()", "(root='b')"]),
        ("dataset_args", ({"n": 9, "v": 1}, {"n": 9, "v": True}), ["(v=1)", "(v=True)"]),
        ("dataset_args", ({"root": "a" * 99}, {"root": "b" * 99}), [None, None]),
        ("step", ("a:step", "b:step"), ["(step='a:step')", "(step='b:step')"]),
    ],
    ids=["argument", "no argument", "equal in Python", "long", "step"],
)
def test_workloads_of_one_dataset_are_listed_with_the_arguments_or_step_that_differ_or_by_ids(
    tmp_path: Path, field: str, values: tuple[Any, ...], names: list[str | None]
) -> None:
    profiles = [make_for(workload={field: value}) for value in values]
    ids = [one.workload.id for one in profiles]
    listed = [f"data:make_dataset{name}" if name else one for name, one in zip(names, ids, strict=True)]
    with pytest.raises(ProfileError, match=re.escape(f"several workloads: {', '.join(listed)}. Name one")):
        select(tmp_path, *profiles)
    for profile, *accepted in zip(profiles, ids, listed, strict=True):
        assert [select(tmp_path, *profiles, name=name) for name in accepted] == [profile] * 2
    with pytest.raises(ProfileError, match="dltune --dataset"):
        select(tmp_path)


def test_a_name_that_is_offered_selects_its_profile_beside_results_of_training_runs_and_labels(tmp_path: Path) -> None:
    tuned = [make_for(workload={"dataset_args": {"n": 1, "root": root}}) for root in "ab"]
    others = make_for(workload={"dataset_args": {"n": 2, "root": "a"}}, search=make_search_record(sampler="training"))
    label = make_for(workload={"dataset_args": {"n": 3}}, label="data:make_dataset(n=1, root='a')")
    with pytest.raises(ProfileError, match="several workloads") as caught:
        select(tmp_path, *tuned, others, label)
    name = re.findall(r"or --profile (\S+);", str(caught.value))[0]
    assert select(tmp_path, *tuned, others, label, name=name) == tuned[0]


def test_a_title_names_the_profile_that_has_no_label_or_split_besides(tmp_path: Path) -> None:
    plain, labelled, split = make_for(), make_for(label="big"), make_for(workload={"split": "train"})
    assert select(tmp_path, labelled, split, plain, name="data:make_dataset") == plain
    assert select(tmp_path, labelled, split, plain, name="data:make_dataset [train]") == split
    assert select(tmp_path, labelled, name="data:make_dataset") == labelled


def test_a_class_of_machines_does_not_name_the_result_of_a_training_run_if_there_is_a_tuned_profile(
    tmp_path: Path,
) -> None:
    trained = make_for("data:Train", search=make_search_record(sampler="training"))
    tuned = make_for("data:make")
    assert select(tmp_path, trained, tuned, name=tuned.machine_class) == tuned
    assert select(tmp_path, trained, name=trained.machine_class) == trained


def test_profiles_with_one_label_are_one_workload(tmp_path: Path) -> None:
    profiles = [make_for(label="train", workload={"dataset_args": {"root": root}}) for root in ("/a", "/b")]
    assert select(tmp_path, *profiles, name="train").label == "train"


def test_a_machine_with_a_gpu_is_the_same_for_a_profile_of_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.system.machine.read_gpus", lambda: ("NVIDIA H100",))
    monkeypatch.setattr("autotune.profiles.load.read_torch", lambda: TorchVersion("2.13.0+cu130", "13.0"))
    machine = make_machine()
    for device, gpu in (("cpu", None), ("cpu:0", None), ("auto", "NVIDIA H100")):
        workload = make_request().workload.model_copy(update={"device": device})
        request = make_request().model_copy(update={"workload": workload}).record()
        assert describe_here(make_for(request=request), machine).gpu == gpu
    for unreadable in ({"workload": 0}, {"workload": None}, {}):
        assert describe_here(make_for(request=unreadable), machine).gpu == "NVIDIA H100"
    monkeypatch.setattr("autotune.profiles.load.read_torch", lambda: TorchVersion("2.13.0+cpu", None))
    assert describe_here(make_for(), machine).gpu is None


# Scaling down


def make_tuned(workers: int, prefetch: int = 2, batch_size: int | None = 64, **changes: Any) -> TunedProfile:
    flags = {name: changes.pop(name) for name in ("in_order", "persistent_workers") if name in changes}
    return make_profile(dataloader=make_config(workers, prefetch, batch_size, **flags).dataloader, **changes)


def count_workers(profile: TunedProfile, processes: int = 1, **machine: Any) -> int:
    return scale_down(profile, make_machine(**machine), processes).dataloader.num_workers


def test_a_configuration_is_unchanged_if_the_machine_has_at_least_as_much() -> None:
    profile = make_tuned(4, in_order=False, persistent_workers=True)
    assert scale_down(profile, make_machine()) == profile.config
    assert scale_down(profile, make_machine(affinity_cpus=64, nofile_limit=2**20)) == profile.config
    assert count_workers(make_tuned(3, workload=make_identity(nproc_per_node=4))) == 3  # of one process


@pytest.mark.parametrize(
    ("machine", "processes", "workers"),
    [
        ({"affinity_cpus": 2}, 1, 6),
        ({"memory_limit_bytes": 5 * GIB}, 1, 6),
        ({"nofile_limit": 160}, 1, 4),
        ({"nofile_limit": 512}, 1, 12),
        ({}, 4, 3),
    ],
)
def test_workers_are_reduced_with_cpus_memory_open_files_and_processes(
    machine: dict[str, Any], processes: int, workers: int
) -> None:
    profile = make_tuned(12, result=make_profile_result(peak_host_bytes=8 * GIB))
    assert count_workers(profile, processes, **machine) == workers


def test_prefetched_batches_are_reduced_before_workers() -> None:
    profile = make_tuned(4, 8, workload=make_identity(sample_bytes=MIB // 64))
    loader = scale_down(profile, make_machine(shm_limit_bytes=16 * MIB)).dataloader
    assert (loader.num_workers, loader.prefetch_factor) == (4, 2)


def test_batches_of_a_batch_sampler_have_their_profiled_size() -> None:
    """Samples of 600 kB and /dev/shm of 64 MiB, as in Docker: not even one batch of 64 samples fits."""
    changes = {"workload": make_identity(sample_bytes=600_000), "search": make_search_record(batch_samples=64)}
    for batch_size in (64, None):
        assert count_workers(make_tuned(4, 2, batch_size, **changes), shm_limit_bytes=64 * MIB) == 0


@given(
    workers=st.integers(0, 64),
    prefetch=st.integers(1, 16),
    sample_bytes=st.integers(0, 2**22),
    shm=st.integers(0, 2**32),
    cpus=st.floats(0.1, 64),
)
def test_a_scaled_down_configuration_is_legal_and_fits(
    workers: int, prefetch: int, sample_bytes: int, shm: int, cpus: float
) -> None:
    profile = make_tuned(workers, prefetch, workload=make_identity(samples=None, sample_bytes=sample_bytes))
    machine = make_machine(affinity_cpus=64, quota_cpus=cpus, shm_limit_bytes=shm)
    config = scale_down(profile, machine)
    loader = type(config.dataloader).model_validate(config.dataloader.model_dump())
    assert loader.num_workers <= workers
    assert loader.num_workers <= workers * cpus / profile.hardware.usable_cpus + 1
    if loader.num_workers:
        assert (loader.num_workers * (loader.prefetch_factor or 0) + 2) * 64 * sample_bytes <= shm
