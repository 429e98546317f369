from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.profiles.schema import CandidateResult, ValidationRun
from benchmarks.libraries import LIBRARIES, LibraryResult, describe, find_compared
from benchmarks.training.own_loop import find_loaders, train
from benchmarks.workloads import libraries
from benchmarks.workloads.libraries import made_once
from tests.builders import make_config, make_profile, make_profile_result

RESULT = LibraryResult(
    name="stateful",
    option="--dataset",
    package="torchdata 0.11.0",
    measured="torchdata.StatefulDataLoader",
    choice="w=2 pf=2 bs=32",
    verdict="faster",
    predicted=150.0,
    predicted_baseline=100.0,
    compared="w=2 pf=2 bs=32",
    speedup=1.5,
    tuning_seconds=90.0,
    epochs=2,
    baseline_runs=(100.0, 50.0, 100.0),
    tuned_runs=(120.0, 100.0, 150.0),
)


def test_the_speed_up_of_whole_runs_is_the_median_of_pairs() -> None:
    assert RESULT.true_speedup == pytest.approx(1.5)
    assert RESULT.deviation == pytest.approx(0.0)


def test_a_loader_that_is_best_as_it_is_has_no_speed_up_to_be_held_to() -> None:
    kept = RESULT.model_copy(update={"speedup": None, "verdict": "no_change"})
    assert kept.deviation is None
    assert "| no change | 1.50x |  |" in describe([kept])[-1]


def test_where_the_answer_is_to_keep_it_the_best_of_the_others_is_held_to_what_was_measured_of_it() -> None:
    rated = {0: (10.0, 10.0), 1: (5.0, 5.0), 2: (9.0, 8.0)}  # samples/s of the rounds, by workers
    kept, worse, other = (
        CandidateResult(
            config=make_config(workers),
            runs=tuple(ValidationRun(number=number, samples_per_second=rate) for number, rate in enumerate(rates, 1)),
        )
        for workers, rates in rated.items()
    )
    result = make_profile_result(verdict="no_change", candidates=(kept, worse, other))
    profile = make_profile(result=result).model_copy(update={"config": kept.config})
    config, speedup = find_compared(profile)
    assert config == other.config
    assert speedup == pytest.approx(0.85)


def test_each_loader_has_a_row_of_what_was_predicted_and_what_was_true() -> None:
    assert describe([RESULT])[-1].endswith("| w=2 pf=2 bs=32 | 1.50x | 1.50x | +0.0% |")


def test_each_library_is_measured_once_by_a_factory_that_is_there() -> None:
    names = [library.name for library in LIBRARIES]
    assert sorted(names) == sorted(name for name in libraries.__all__ if name != "BATCH")


def test_a_dataset_is_loaded_by_a_shuffling_loader_as_users_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_once, "FOLDER", tmp_path)
    loader = next(find_loaders(libraries.memory_mapped_tokens, None, gives_dataset=True))
    assert (loader.batch_size, loader.num_workers) == (libraries.BATCH, 0)
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)


def test_data_is_there_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError

    monkeypatch.setattr(made_once, "FOLDER", tmp_path)
    with pytest.raises(OSError, match=r"^$"):
        made_once.make_once("data", fail)
    assert list(tmp_path.iterdir()) == []
    assert made_once.make_once("data", lambda folder: (folder / "whole").touch()) == tmp_path / "data"
    assert made_once.make_once("data", fail) == tmp_path / "data"


def test_a_generator_is_made_anew_for_each_epoch_of_a_whole_run() -> None:
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
