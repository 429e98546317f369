"""What a function of the settings makes is measured as training would find it, whatever it does with them."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.child.loader import build_loader
from autotune.child.workload import load_workload
from autotune.errors import UsageError
from autotune.request import WorkloadRequest
from tests import own_loaders
from tests.builders import make_config

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def build(name: str, workers: int) -> Any:
    workload = load_workload(WorkloadRequest(dataset=f"tests.own_loaders:{name}", is_loader=True))
    return build_loader(workload, make_config(workers, batch_size=10))


def test_an_iterator_that_begins_anew_by_itself_is_not_made_anew() -> None:
    loader = build("make_begins_anew", 0)
    made = own_loaders.BeginsAnew.made
    assert [sum(1 for _ in loader) for _ in range(3)] == [6, 6, 6]
    assert own_loaders.BeginsAnew.made == made


def test_a_function_that_caps_the_workers_is_measured_with_as_many_as_it_makes() -> None:
    assert build("make_capped", 5).num_workers == 2
    assert build("make_capped", 1).num_workers == 1


def test_a_function_that_makes_more_workers_than_it_is_told_is_refused() -> None:
    workload = load_workload(WorkloadRequest(dataset="tests.own_loaders:make_stubborn", is_loader=True))
    with pytest.raises(UsageError, match="was given num_workers=1 and made a loader with 2"):
        build_loader(workload, make_config(1))
