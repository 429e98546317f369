"""Rows, loaders and data of the comparison of libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks.libraries import LIBRARIES, LibraryResult, expect_within, find_compared, format_results
from benchmarks.library_training import find_loaders, train
from benchmarks.workloads.libraries import made_once
from benchmarks.workloads.libraries.arrays import memory_mapped_tokens
from tests.builders import make_candidate_result, make_config, make_profile, make_profile_result

RESULT = LibraryResult(
    name="stateful",
    option="--dataset",
    package="torchdata 0.11.0",
    measured="torchdata.StatefulDataLoader",
    choice="w=2 pf=2 bs=32",
    decision="faster",
    compared="w=2 pf=2 bs=32",
    speedup=1.5,
    tuning_seconds=90.0,
    baseline_runs=(100.0, 50.0, 100.0),
    tuned_runs=(120.0, 100.0, 150.0),
)


def test_a_row_has_the_predicted_speedup_if_any_and_that_of_whole_runs_which_is_the_median_of_pairs() -> None:
    assert RESULT.true_speedup == pytest.approx(1.5)
    assert RESULT.deviation == pytest.approx(0.0)
    assert re.search(r"\| w=2 pf=2 bs=32 +\| 1.50x +\| 1.50x +\| \+0.0% +\|$", format_results([RESULT]), re.MULTILINE)
    kept = RESULT.model_copy(update={"speedup": None, "decision": "no_change"})
    assert kept.deviation is None
    assert re.search(r"\| no change +\| 1.50x +\| +\|$", format_results([kept]))


def test_perfect_predictions_of_runs_that_scatter_are_not_all_within_the_tolerance() -> None:
    quiet = RESULT.model_copy(update={"baseline_runs": (100.0,) * 3, "tuned_runs": (150.0, 151.0, 152.0)})
    assert expect_within([quiet] * 10, 0.08) == pytest.approx(10.0)
    assert 2.0 < expect_within([RESULT] * 10, 0.08) < 5.0
    assert "1 of 1 predictions within 8% of whole runs; of perfect ones, 0." in format_results([RESULT])


def test_if_no_change_is_recommended_the_best_other_candidate_is_compared() -> None:
    kept, worse, other = (
        make_candidate_result(make_config(workers), *rates)
        for workers, rates in enumerate([(10.0, 10.0), (5.0, 5.0), (9.0, 8.0)])
    )
    result = make_profile_result(decision="no_change", candidates=(kept, worse, other))
    profile = make_profile(result=result).model_copy(update={"config": kept.config})
    config, speedup = find_compared(profile)
    assert config == other.config
    assert speedup == pytest.approx(0.85)


def test_each_library_is_measured_once_by_a_function_that_exists() -> None:
    assert len({library.name for library in LIBRARIES}) == len(LIBRARIES)
    assert all(callable(resolve_name(library.factory)) for library in LIBRARIES)


def test_a_dataset_is_loaded_by_a_shuffling_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_once, "FOLDER", tmp_path)
    loader = next(find_loaders(memory_mapped_tokens, None, gives_dataset=True))
    assert (loader.batch_size, loader.num_workers) == (made_once.BATCH, 0)
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)


def test_data_appears_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError

    monkeypatch.setattr(made_once, "FOLDER", tmp_path)
    with pytest.raises(OSError, match=r"^$"):
        made_once.make_once("data", fail)
    assert list(tmp_path.iterdir()) == []
    assert made_once.make_once("data", lambda folder: (folder / "whole").touch()) == tmp_path / "data"
    assert made_once.make_once("data", fail) == tmp_path / "data"


def test_a_generator_is_made_again_for_each_epoch() -> None:
    made = []

    def batches() -> Iterator[torch.Tensor]:
        made.append(1)
        return (torch.zeros(2, 1) for _ in range(3))

    assert train(find_loaders(batches, None, gives_dataset=False), 2) > 0
    assert len(made) == 2


def test_a_module_is_asked_for_its_loader_as_a_trainer_asks() -> None:
    asked: list[str] = []

    class Module:
        def prepare_data(self) -> None:
            asked.append("prepare_data")

        def setup(self, stage: str) -> None:
            asked.append(stage)

        def train_dataloader(self) -> DataLoader[torch.Tensor]:
            return DataLoader([torch.zeros(1)])  # type: ignore[arg-type]  # a list does for a dataset

    assert isinstance(next(find_loaders(Module, None, gives_dataset=False)), DataLoader)
    assert asked == ["prepare_data", "fit"]
