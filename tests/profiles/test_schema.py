from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.utils.data import DataLoader

from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.profiles.schema import TunedFile, TunedProfile, WorkloadIdentity
from autotune.request import WorkloadRequest
from autotune.system.machine import Hardware
from tests.builders import make_config, make_full_profile, make_hardware, make_profile, make_profile_result

FIELDS = st.fixed_dictionaries(
    {"batch_size": st.none() | st.integers(-1, 40)},
    optional={
        "num_workers": st.integers(-1, 3),
        "prefetch_factor": st.none() | st.integers(-1, 4),
        "pin_memory": st.booleans(),
        "persistent_workers": st.booleans(),
        "in_order": st.booleans(),
    },
)
PROCESSES = st.builds(
    ProcessSettings,
    sharing_strategy=st.sampled_from(["file_descriptor", "file_system"]),
    multiprocessing_context=st.sampled_from([None, "fork", "spawn", "forkserver"]),
)
DATA: Any = range(10)  # torch asks for no more than a sequence
NO_ACCELERATOR = "ignore:.*pin_memory.*no accelerator:UserWarning"
FEW_CPUS = "ignore:This DataLoader will create:UserWarning"


def make_identity(**changes: Any) -> WorkloadIdentity:
    usual: dict[str, Any] = {"dataset": "a:b", "samples": 1000, "sample_bytes": 4096, "step": "built-in"}
    return WorkloadIdentity(**usual | changes)


def build(fields: Mapping[str, Any], process: ProcessSettings | None = None) -> LoaderConfig | None:
    """Build a configuration, or None where the schema refuses it."""
    try:
        return LoaderConfig(dataloader=DataLoaderSettings(**fields), process=process or ProcessSettings())
    except ValidationError:
        return None


def list_numbers(part: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """List the numbers in a JSON schema, with their paths."""
    if isinstance(part, Mapping) and part.get("type") in ("number", "integer") and "const" not in part:
        yield path, part
    inside = part.items() if isinstance(part, Mapping) else enumerate(part) if isinstance(part, list) else ()
    for name, inner in inside:
        yield from list_numbers(inner, f"{path}.{name}")


@pytest.mark.filterwarnings(NO_ACCELERATOR, FEW_CPUS)
@given(fields=FIELDS, process=PROCESSES)
@example(fields={"batch_size": 4, "num_workers": 2, "prefetch_factor": 0}, process=ProcessSettings())
@settings(max_examples=200)
def test_settings_are_refused_or_accepted_by_a_real_data_loader(
    fields: dict[str, Any], process: ProcessSettings
) -> None:
    config = build(fields, process)
    if config is None:
        return
    assert LoaderConfig.model_validate_json(config.model_dump_json()) == config
    loader: DataLoader[int] = DataLoader(DATA, **config.loader_kwargs())
    assert loader.num_workers == config.dataloader.num_workers
    assert loader.in_order == config.dataloader.in_order
    if config.dataloader.num_workers == 0:
        assert sum(len(batch) for batch in iter(loader)) == 10


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prefetch_factor": 2}, "prefetch_factor needs num_workers"),
        ({"persistent_workers": True}, "persistent_workers needs num_workers"),
        ({"in_order": False}, "in_order=False needs num_workers"),
        ({"num_workers": 2}, "prefetch_factor is required"),
        ({"num_workers": 2, "prefetch_factor": 0}, "greater than or equal to 1"),
        ({"num_workers": -1}, "greater than or equal to 0"),
    ],
)
def test_what_no_loader_accepts_is_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        DataLoaderSettings(batch_size=4, **fields)


def test_a_file_survives_json_and_every_number_in_it_has_bounds() -> None:
    file = TunedFile(profiles=(make_full_profile(), make_profile(label="mine", workload=make_identity(split="train"))))
    assert TunedFile.model_validate_json(file.model_dump_json()) == file
    numbers = list(list_numbers(TunedFile.model_json_schema()))
    assert len(numbers) > 50
    assert [path for path, number in numbers if "minimum" not in number or "maximum" not in number] == []


@given(
    dataset=st.text(min_size=1),
    arguments=st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=3),
    split=st.none() | st.text(),
    processes=st.integers(1, 64),
)
def test_the_id_of_a_workload_is_stable_and_depends_only_on_its_names(
    dataset: str, arguments: dict[str, Any], split: str | None, processes: int
) -> None:
    named: dict[str, Any] = {"dataset": dataset, "dataset_args": arguments, "split": split, "nproc_per_node": processes}
    identity = make_identity(**named)
    assert WorkloadIdentity.model_validate_json(identity.model_dump_json()).id == identity.id
    assert make_identity(**named, samples=7, sample_bytes=1, kind="iterable").id == identity.id
    assert make_identity(**named | {"nproc_per_node": processes + 1}).id != identity.id


def test_the_id_of_a_profile_joins_machine_class_and_workload_or_label() -> None:
    assert make_profile(label="mine").id == f"{make_profile().machine_class}/mine"
    assert make_profile().id == f"{make_profile().machine_class}/{make_profile().workload.id}"


def test_a_profile_is_validated_by_a_complete_run_with_an_interval_of_several_runs() -> None:
    assert make_profile().is_validated
    assert not make_profile(is_complete=False).is_validated
    for changes in ({"validation_runs": 1}, {"samples_per_second_ci95": None}):
        assert not make_profile(result=make_profile_result(**changes)).is_validated


def test_unknown_fields_changes_and_other_schema_versions_are_refused() -> None:
    loader = make_config(2).dataloader
    with pytest.raises(ValidationError, match="prefetch_facter"):
        DataLoaderSettings.model_validate({"batch_size": 4, "prefetch_facter": 2})
    with pytest.raises(ValidationError, match="frozen"):
        loader.num_workers = 0  # type: ignore[misc]  # this is the mistake under test
    with pytest.raises(ValidationError, match="schema_version"):
        TunedFile.model_validate({"schema_version": 3, "profiles": []})
    with pytest.raises(ValidationError, match="created_at"):
        make_profile(created_at=datetime(2026, 1, 1))  # without a time zone


def test_a_reversed_interval_is_refused_with_both_of_its_bounds() -> None:
    with pytest.raises(ValidationError, match=r"1\.0 is below the lower bound 2\.0"):
        make_profile_result(speedup_ci95=(2.0, 1.0))
    with pytest.raises(ValidationError, match="less than or equal to"):
        make_profile_result(speedup_ci95=(0.0, float("inf")))


def test_arguments_without_effect_are_left_out() -> None:
    spawn = ProcessSettings(multiprocessing_context="spawn")
    assert "batch_size" not in make_config(2, batch_size=None).loader_kwargs()
    assert make_config(2, process=spawn).loader_kwargs()["multiprocessing_context"] == "spawn"
    assert "multiprocessing_context" not in make_config(0, process=spawn).loader_kwargs()


def test_a_request_with_a_number_that_json_lacks_is_refused() -> None:
    text = make_profile(request={"trials": 1}).model_dump_json().replace('"trials":1', '"trials":Infinity')
    with pytest.raises(ValidationError, match="representable in JSON"):
        TunedProfile.model_validate_json(text)


def test_arguments_are_as_json_has_them_so_that_a_workload_keeps_its_id() -> None:
    request = WorkloadRequest(dataset="pkg:make", dataset_args={"sizes": {2: (1, 2), "x": 3}})
    again = WorkloadRequest.model_validate_json(request.model_dump_json())
    assert request == again
    assert request.dataset_args == {"sizes": {"2": [1, 2], "x": 3}}


@pytest.mark.parametrize("gpu", ["", "  "])
def test_a_gpu_without_a_name_is_refused(gpu: str) -> None:
    with pytest.raises(ValidationError, match="gpu"):
        Hardware.model_validate(make_hardware().model_dump() | {"gpu": gpu})
