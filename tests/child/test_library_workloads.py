"""Datasets, data modules and loaders of other libraries become workloads, most of them in a real child process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.child.loader import build_loader
from autotune.child.workload import LoadedWorkload, load_workload
from autotune.config import DataLoaderSettings
from autotune.errors import UsageError
from autotune.profiles.schema import Budgets
from autotune.protocol.messages import TrialRequest
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import WorkloadRequest
from autotune.runner.runner import TrialRunner
from tests.builders import make_config
from tests.kept_supervisor import LIBRARIES, keep_supervisor

ROOT = str(Path(__file__).parents[2])
LIMITS = Budgets(memory_bytes=8 * 2**30, reserve_bytes=0, shm_bytes=2**30, nofile=1024)
QUIET: Any = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("leaves_nothing", "offline"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),  # Lightning
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11
]


def open_runner(dataset: str, *, is_loader: bool = False, processes: int = 1, **arguments: Any) -> TrialRunner:
    parts = {"dataset": dataset, "dataset_args": arguments, "is_loader": is_loader, "nproc_per_node": processes}
    request = WorkloadRequest(**parts, step_seconds=1e-4, working_dir=ROOT)
    return TrialRunner(request, stall_seconds=120.0, supervisor=keep_supervisor(*LIBRARIES))


def probe(dataset: str, **arguments: Any) -> WorkloadProfile:
    with open_runner(dataset, **arguments) as runner:
        return runner.probe((8, 8), LIMITS)


def load(name: str, split: str | None = None) -> LoadedWorkload:
    return load_workload(WorkloadRequest(dataset=f"tests.data_modules:{name}", split=split))


@pytest.mark.parametrize(
    ("dataset", "arguments", "batch_size"),
    [
        ("tests.data_modules:FilesOfItsOwn", {}, 8),  # the module lives as long as its files are read
        ("tests.data_modules:StatefulNumbers", {}, 8),
        ("tests.data_modules:make_prepared", {"is_loader": True}, 8),
        ("tests.data_modules:make_trainer_loader", {}, None),
        ("examples.lightning_module:TableModule", {"rows": 64}, 8),
        ("examples.hf_dataset:make_dataset", {"sequences": 64}, 8),
        ("examples.hf_dataset:make_stream", {"sequences": 64}, 8),
    ],
)
def test_workers_deliver_each_sample_once(dataset: str, arguments: dict[str, Any], batch_size: int | None) -> None:
    with open_runner(dataset, **arguments) as runner:
        runner.limit(LIMITS)
        result = runner.run(TrialRequest(config=make_config(2, 2, batch_size), epochs=1, seconds=5.0))
    assert result.measurement is not None, result.message
    assert result.measurement.epochs[0].samples == 64


@pytest.mark.parametrize("factory", ["make_trainer_loader", "Numbers"])
def test_a_loader_of_a_library_is_sharded_by_the_library(factory: str) -> None:
    with open_runner(f"tests.data_modules:{factory}", is_loader=factory != "Numbers", processes=2) as runner:
        runner.limit(LIMITS)
        result = runner.run(TrialRequest(config=make_config(1, 2, 8), epochs=2, seconds=20.0))
    assert result.measurement is not None, result.message
    assert [rank.samples for rank in result.measurement.ranks] == [32, 32]


def test_a_data_module_becomes_workload_and_baseline_by_the_calls_of_a_trainer() -> None:
    found = probe("tests.data_modules:Numbers", batch_size=4)
    assert (found.kind, found.samples, found.drop_last) == ("map", 64, True)
    assert found.baseline is not None
    assert found.baseline.dataloader == DataLoaderSettings(batch_size=4, num_workers=1, prefetch_factor=3)


def test_a_hugging_face_dataset_returns_whole_batches_and_a_stream_shares_its_shards() -> None:
    found = probe("examples.hf_dataset:make_dataset", sequences=64)
    assert (found.kind, found.samples, found.has_getitems) == ("map", 64, True)
    assert found.sample_bytes == (256 + 1) * 8
    found = probe("examples.hf_dataset:make_stream", sequences=64)
    assert (found.kind, found.samples, found.workers_duplicate_data) == ("iterable", None, False)


@pytest.mark.parametrize("name", ["ModelWithData", "MODEL"])
def test_a_model_may_have_its_own_data(name: str) -> None:
    loaded = load(name)
    assert loaded.expected_samples == 64
    assert loaded.baseline is not None


def test_a_loader_class_of_a_library_is_measured() -> None:
    loaded = load("StatefulNumbers")
    assert loaded.baseline is not None
    assert loaded.baseline.dataloader == DataLoaderSettings(batch_size=8)
    loader = build_loader(loaded, make_config(2, 2, 8))
    assert (type(loader).__mro__[2].__name__, loader.ends_with_sampler) == ("StatefulDataLoader", True)


@pytest.mark.parametrize(
    ("name", "workers", "preparer"), [("make_prepared", 0, "accelerate"), ("make_trainer_loader", 1, "transformers")]
)
def test_the_loader_inside_that_of_accelerate_is_measured(
    name: str, workers: int, preparer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if preparer == "accelerate":  # the Trainer of another test
        monkeypatch.delitem(sys.modules, "transformers.trainer", raising=False)
    loaded = load(name)
    assert loaded.baseline is not None
    settings = loaded.baseline.dataloader
    assert (loaded.own, loaded.batching, settings.num_workers, settings.batch_size) == (None, "batch_size", workers, 8)
    assert len(list(build_loader(loaded, make_config(workers, batch_size=16)))) == 4  # of 64 samples
    assert loaded.prepared_by == preparer
    assert "inside accelerate.data_loader.DataLoaderShard" in (loaded.note or "")


@pytest.mark.parametrize(
    ("name", "words", "split", "samples"),
    [
        ("SeveralLoaders", r"SeveralLoaders returned a list with '0', '1'\. Choose one with --split 0\.", "0", 64),
        ("make_combined", r"CombinedLoader with 'left', 'right'\. .* --split left\.", "right", 64),
        ("make_splits", r"DatasetDict with 'train', 'test'\. .* --split train", "test", 32),
    ],
)
def test_one_of_several_loaders_is_chosen_by_its_name(name: str, words: str, split: str, samples: int) -> None:
    with pytest.raises(UsageError, match=words):
        load(name)
    assert load(name, split).expected_samples == samples


def test_lightnings_trainer_makes_the_calls_in_the_same_order(tmp_path: Path) -> None:
    from lightning.pytorch import Trainer

    from tests.data_modules import Idle, Numbers

    trainer = Trainer(max_steps=1, logger=False, enable_checkpointing=False, default_root_dir=tmp_path, **QUIET)
    trainer.fit(Idle(), datamodule=Numbers())
    assert trainer.global_step == 1
