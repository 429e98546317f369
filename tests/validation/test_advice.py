"""Sentences on improvements outside the loader's settings."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.profiles.schema import Bottleneck, Budgets
from autotune.protocol.workload_profile import CostlyLine
from autotune.validation.result import suggest_improvements
from tests.builders import (
    MIB,
    make_config,
    make_cost,
    make_gpu_workload,
    make_limits,
    make_workload,
)
from tests.search.formulas import make_test_plan

WAITING: dict[str, Any] = {"load_cost": make_cost(5e-3), "cpu_share": 0.02, "step_cost": make_cost(0.0, 1e-3)}


def advise(bottleneck: Bottleneck, budgets: Budgets | None = None, **workload: Any) -> str:
    return " ".join(
        suggest_improvements(make_test_plan(make_workload(**workload), budgets), make_config(4), bottleneck)
    )


LINE = CostlyLine(file="/home/ada/train/data.py", line=12, source="image = decode(path)", share=0.71)


@pytest.mark.parametrize(
    ("bottleneck", "workload", "words"),
    [
        ("io", WAITING, "Loading a sample takes 5.0 ms, 98% of it waiting: a dataset with __getitems__"),
        ("cpu", {"collate_cost": make_cost(5e-4)}, "Collating takes 50% of loading a batch (16.0 ms of 32.0 ms)"),
        ("cpu", {"costly_lines": (LINE,)}, "71% in data.py:12 (`image = decode(path)`)"),
        ("cpu", {"step_cpus": 1.9}, "torch.set_num_threads(1)"),
        ("epoch", {}, "set persistent_workers=True, or use a sampler that repeats the data"),
        ("epoch", {"kind": "iterable"}, "set persistent_workers=True, or have __iter__ repeat the data"),
    ],
)
def test_a_cause_outside_the_loader_has_a_sentence(
    bottleneck: Bottleneck, workload: dict[str, Any], words: str
) -> None:
    assert words in advise(bottleneck, **workload)


@pytest.mark.parametrize(
    ("bottleneck", "workload"),
    [
        ("step", {"costly_lines": (LINE,)}),
        ("io", WAITING | {"has_getitems": True}),
        ("io", WAITING | {"kind": "iterable"}),
        ("io", WAITING | {"cpu_share": 1.0}),
        ("cpu", {"collate_cost": make_cost(1e-5)}),
        ("cpu", {"collate_cost": make_cost(0.0), "load_cost": make_cost(0.0)}),
    ],
)
def test_without_a_cause_there_is_no_advice(bottleneck: Bottleneck, workload: dict[str, Any]) -> None:
    assert advise(bottleneck, **workload) == ""


def test_a_dataset_that_may_change_between_epochs_is_a_reason_not_to_keep_workers() -> None:
    found = advise("epoch", epoch_state="dataset.set_epoch()")
    assert found.startswith("The dataset may change between epochs (dataset.set_epoch())")
    assert "set persistent_workers=True" not in found


def test_a_limit_that_rules_out_faster_configurations_is_named_with_its_number() -> None:
    found = advise("io", make_limits(shm_bytes=16 * MIB), **WAITING, sample_bytes=16 * 1024, has_getitems=True)
    assert "x faster, but is over a limit: /dev/shm: " in found
    assert "of 16.0 MiB" in found


def test_copies_that_are_the_bottleneck_are_named_with_their_rate() -> None:
    (sentence,) = suggest_improvements(make_test_plan(make_gpu_workload()), make_config(4, pin_memory=True), "copy")
    assert "at 11.2 GiB/s" in sentence
