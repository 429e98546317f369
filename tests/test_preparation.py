"""The profile of an earlier run of the same request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.preparation import find_stored
from autotune.profiles.schema import TunedProfile
from autotune.system.machine import describe_local_hardware, read_machine
from tests.builders import make_profile, make_profile_result, make_request, write_profiles


def make_here(**changes: Any) -> TunedProfile:
    here = describe_local_hardware(read_machine(), make_profile().hardware)
    return make_profile(hardware=here, request=make_request().record(), **changes)


def find(validated: bool = True, **options: Any) -> TunedProfile | None:
    return find_stored(make_request(**options), read_machine(), validated=validated)


def test_a_result_is_found_for_the_same_request_only(workdir: Path) -> None:
    write_profiles(workdir, make_here())
    assert find() is not None
    assert find(timeout_seconds=9.0, storage="sqlite:///x.db") is not None
    for changes in ({"epochs": 3}, {"trials": 3}, {"output": "elsewhere.json"}, {"fixed": {"num_workers": 2}}):
        assert find(**changes) is None, changes


@pytest.mark.parametrize("changes", [{"is_complete": False}, {"result": make_profile_result(validation_runs=0)}])
def test_an_unvalidated_profile_is_a_run_to_continue_and_no_result(workdir: Path, changes: dict[str, Any]) -> None:
    write_profiles(workdir, make_here(**changes))
    assert find() is None
    assert find(validated=False) is not None


def test_a_profile_of_another_machine_class_is_no_result(workdir: Path) -> None:
    here = make_here()
    other = here.hardware.model_copy(update={"usable_cpus": 640.0})
    write_profiles(workdir, here.model_copy(update={"hardware": other}))
    assert find() is None
