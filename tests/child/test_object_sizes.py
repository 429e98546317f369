from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotune.child.probe_cow import estimate_bytes, find_largest


class Images:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_the_largest_collection_of_objects_is_named() -> None:
    infos = [{"path": f"{number:050}", "label": number} for number in range(10_000)]
    found = find_largest(Images(root="x", classes=["a"] * 100, infos=infos, pixels=np.zeros(10**7)), 2**20)
    assert found is not None
    assert found.describe() == "`dataset.infos`, a list of 10,000 objects of type dict"


def test_what_lies_in_a_wrapped_dataset_is_found() -> None:
    inner = Images(names=[f"{number:050}" for number in range(10_000)])
    subset, joined = Images(dataset=inner), Images(datasets=[Images(), inner])
    places = [found.place for one in (subset, joined) if (found := find_largest(one, 1000)) is not None]
    assert places == ["dataset.dataset.names", "dataset.datasets[1].names"]


@pytest.mark.parametrize("dataset", [Images(infos=[]), Images(pixels=np.zeros(10**6)), object(), None, 3])
def test_where_nothing_is_held_in_objects_nothing_is_named(dataset: Any) -> None:
    assert find_largest(dataset, 1000) is None


def test_the_size_of_many_is_estimated_by_some() -> None:
    names = [f"{number:0100}" for number in range(10_000)]
    whole = sum(map(estimate_bytes, names))
    assert estimate_bytes(names) == pytest.approx(whole + 8 * len(names), rel=0.05)


def test_a_dataset_that_holds_itself_is_looked_at_a_few_times() -> None:
    dataset = Images(infos=["x" * 1000])
    dataset.dataset = dataset  # type: ignore[attr-defined]  # whatever a user's object holds
    assert find_largest(dataset, 1000) is not None
