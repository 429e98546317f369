"""The code that a page offers for pasting runs as it stands."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from autotune.profiles.schema import TunedProfile
from autotune.report.usage import usage_snippet, usage_snippet_without_dltune
from autotune.search.plan import make_plan
from autotune.tuning import tune
from tests.builders import make_config, make_limits, make_machine, make_profile, make_request, make_workload
from tests.test_tuning import Bench, saturating, waiting_workload
from tests.test_tuning import make_request as make_run


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def make_profile_of(kind: Literal["map", "iterable"]) -> TunedProfile:
    workload = make_profile().workload.model_copy(update={"kind": kind})
    return make_profile(dataloader=make_config(0, batch_size=4).dataloader, workload=workload)


@pytest.mark.parametrize(("kind", "dataset"), [("map", list(range(10))), ("iterable", Stream())])
def test_the_code_without_dltune_makes_a_loader_of_the_datasets_kind(
    kind: Literal["map", "iterable"], dataset: Any
) -> None:
    code = usage_snippet_without_dltune(make_profile_of(kind))
    names: dict[str, Any] = {"dataset": dataset, "DataLoader": DataLoader, "torch": torch}
    exec(code, names)
    assert sum(len(batch) for batch in names["loader"]) == 10
    assert ("shuffle=True" in code) == (kind == "map")


def test_the_code_with_dltune_shuffles_only_what_can_be_shuffled() -> None:
    assert "shuffle=True" in usage_snippet(make_profile_of("map"), "dltune.json")
    assert "shuffle" not in usage_snippet(make_profile_of("iterable"), "dltune.json")


def test_a_profile_of_an_earlier_version_does_not_say_its_kind_and_is_shuffled() -> None:
    assert make_profile().workload.kind is None
    assert "shuffle=True" in usage_snippet_without_dltune(make_profile())


def test_a_run_writes_down_the_kind_of_its_dataset(workdir: Any) -> None:
    workload = waiting_workload().model_copy(update={"kind": "iterable"})
    found = tune(make_run(), run_trial=Bench(saturating), machine=make_machine(affinity_cpus=2), workload=workload)
    assert found.profile.workload.kind == "iterable"
    plan = make_plan(make_request(), make_machine(), make_workload(kind="iterable"), make_limits())
    assert plan.identity.kind == "iterable"


@pytest.mark.parametrize(
    ("loader", "code"),
    [
        ("timm.data.loader.MultiEpochsDataLoader", "make_loader(MultiEpochsDataLoader, **your_own_arguments)"),
        ("mypkg.data:make_loader", "make_loader(make_loader)"),
    ],
)
def test_a_loader_of_the_users_own_is_made_by_who_made_it(loader: str, code: str) -> None:
    profile = make_profile_of("map")
    changes = {"loader_class": loader, "loader_decides": ("in_order",)}
    profile = profile.model_copy(update={"workload": profile.workload.model_copy(update=changes)})
    assert usage_snippet(profile, "dltune.json").endswith(code)
    plain = usage_snippet_without_dltune(profile)
    assert f"loader = {loader.replace(':', '.').rpartition('.')[2]}(" in plain
    assert "in_order" not in plain


@pytest.mark.parametrize(("split", "choice"), [("train", '["train"]'), ("0", "[0]")])
def test_of_several_loaders_that_a_function_makes_the_tuned_one_is_taken(split: str, choice: str) -> None:
    profile = make_profile_of("map")
    changes = {"loader_class": "mypkg.data:make_loaders", "split": split}
    profile = profile.model_copy(update={"workload": profile.workload.model_copy(update=changes)})
    assert usage_snippet(profile, "dltune.json").endswith(f"make_loader(make_loaders){choice}")
    assert usage_snippet_without_dltune(profile).endswith(f"){choice}")
