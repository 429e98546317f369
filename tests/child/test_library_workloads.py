"""Workloads of Lightning and Hugging Face, in a real child: what dltune makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.child.loader import build_loader
from autotune.child.workload import load_workload
from autotune.config import DataLoaderSettings
from autotune.errors import UsageError
from autotune.protocol.budgets import Budgets
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import WorkloadRequest
from autotune.runner.runner import TrialRunner
from tests.builders import make_config
from tests.kept_server import KeptStarter

ROOT = str(Path(__file__).parents[2])
LIMITS = Budgets(memory_bytes=8 * 2**30, reserve_bytes=0, shm_bytes=2**30, nofile=1024)
QUIET: Any = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("leaves_nothing", "offline")]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the child look for nothing on the network, and write no cache but here."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))


def open_runner(dataset: str, **arguments: object) -> TrialRunner:
    request = WorkloadRequest(dataset=dataset, dataset_args=arguments, step_seconds=1e-4, working_dir=ROOT)
    return TrialRunner(request, stall_seconds=120.0, starter=KeptStarter(ROOT))


def probe(dataset: str, **arguments: object) -> WorkloadProfile:
    with open_runner(dataset, **arguments) as runner:
        return runner.probe((8, 8), LIMITS)


def run_epoch(dataset: str, **arguments: object) -> TrialResult:
    with open_runner(dataset, **arguments) as runner:
        runner.limit(LIMITS)
        return runner.run(TrialRequest(config=make_config(2, 2, 8), epochs=1, seconds=5.0))


def count_samples(result: TrialResult) -> int:
    assert result.measurement is not None, result.message
    return result.measurement.epochs[0].samples


# Lightning, in a real child


def test_a_data_module_becomes_workload_and_baseline_after_the_calls_a_trainer_makes() -> None:
    found = probe("tests.data_modules:Numbers", batch_size=4)
    assert (found.kind, found.samples, found.drop_last) == ("map", 64, True)
    assert found.baseline is not None
    assert found.baseline.dataloader == DataLoaderSettings(batch_size=4, num_workers=1, prefetch_factor=3)


def test_a_data_module_lives_as_long_as_the_files_that_it_owns_are_read() -> None:
    assert count_samples(run_epoch("tests.data_modules:FilesOfItsOwn")) == 64


def test_lightnings_example_can_be_tuned() -> None:
    assert count_samples(run_epoch("examples.lightning_module:TableModule", rows=64)) == 64


# Hugging Face, in a real child


def test_a_hugging_face_dataset_answers_whole_batches() -> None:
    found = probe("examples.hf_dataset:make_dataset", sequences=64)
    assert (found.kind, found.samples, found.has_getitems) == ("map", 64, True)
    assert found.sample_bytes == (256 + 1) * 8


def test_every_sample_of_a_hugging_face_dataset_is_delivered_by_workers() -> None:
    assert count_samples(run_epoch("examples.hf_dataset:make_dataset", sequences=64)) == 64


def test_a_hugging_face_stream_shares_its_shards_among_the_workers() -> None:
    found = probe("examples.hf_dataset:make_stream", sequences=64)
    assert (found.kind, found.samples, found.workers_duplicate_data) == ("iterable", None, False)
    assert count_samples(run_epoch("examples.hf_dataset:make_stream", sequences=64)) == 64


# What needs no child


@pytest.mark.parametrize("name", ["make_model", "ModelWithData", "MODEL"])
def test_a_model_may_hand_out_its_data_itself(name: str) -> None:
    loaded = load_workload(WorkloadRequest(dataset=f"tests.data_modules:{name}"))
    assert loaded.promised_samples == 64
    assert loaded.baseline is not None


def test_the_loader_that_lightning_makes_of_a_dataset_is_the_baseline() -> None:
    loaded = load_workload(WorkloadRequest(dataset="tests.data_modules:make_from_datasets"))
    assert loaded.baseline is not None
    assert loaded.baseline.dataloader == DataLoaderSettings(batch_size=16, pin_memory=True)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 calls it
def test_a_stateful_loader_is_measured_as_one() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loaded = load_workload(WorkloadRequest(dataset="tests.data_modules:StatefulNumbers"))
    assert loaded.baseline is not None
    assert loaded.baseline.dataloader == DataLoaderSettings(batch_size=8)
    assert isinstance(build_loader(loaded, make_config(2, 2, 8)), StatefulDataLoader)


def test_epochs_of_a_stateful_loader_are_measured_in_a_real_child() -> None:
    assert count_samples(run_epoch("tests.data_modules:StatefulNumbers")) == 64


def test_a_loader_of_timm_that_never_restarts_its_workers_is_measured_as_one() -> None:
    loaded = load_workload(WorkloadRequest(dataset="tests.data_modules:make_multi_epochs"))
    assert loaded.own is not None
    assert not loaded.own.ends_with_sampler
    assert type(build_loader(loaded, make_config(2, 2, 8))).__mro__[2].__name__ == "MultiEpochsDataLoader"
    assert count_samples(run_epoch("tests.data_modules:make_multi_epochs")) == 64


def test_what_accelerate_has_prepared_is_refused_and_can_be_made_by_a_function() -> None:
    with pytest.raises(UsageError, match=r"DataLoaderShard, which has its own .*--loader"):
        load_workload(WorkloadRequest(dataset="tests.data_modules:make_prepared"))
    request = WorkloadRequest(dataset="tests.data_modules:make_prepared", is_loader=True, working_dir=ROOT)
    with TrialRunner(request, stall_seconds=120.0, starter=KeptStarter(ROOT)) as runner:
        runner.limit(LIMITS)
        assert count_samples(runner.run(TrialRequest(config=make_config(2, 2, 8), epochs=1, seconds=5.0))) == 64


def test_a_data_module_with_several_loaders_is_a_usage_error() -> None:
    with pytest.raises(
        UsageError,
        match=r"SeveralLoaders returned a list of 2 loaders: '0', '1'\. Choose one with --split 0\.",
    ):
        load_workload(WorkloadRequest(dataset="tests.data_modules:SeveralLoaders"))


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")  # Lightning's call
def test_a_combined_loader_of_lightning_is_answered_with_the_loaders_to_choose_from() -> None:
    with pytest.raises(UsageError, match=r"CombinedLoader of 2 loaders: 'left', 'right'\. .* --split left\."):
        load_workload(WorkloadRequest(dataset="tests.data_modules:make_combined"))
    chosen = load_workload(WorkloadRequest(dataset="tests.data_modules:make_combined", split="right"))
    assert chosen.promised_samples == 64


def test_a_dict_of_splits_is_answered_with_the_splits_to_choose_from() -> None:
    with pytest.raises(UsageError, match=r"DatasetDict of 2 datasets: 'train', 'test'\. .* --split train"):
        load_workload(WorkloadRequest(dataset="tests.data_modules:make_splits"))
    chosen = load_workload(WorkloadRequest(dataset="tests.data_modules:make_splits", split="test"))
    assert chosen.promised_samples == 32


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")  # Lightning's call
def test_lightnings_trainer_itself_makes_the_calls_in_the_order_that_dltune_does(tmp_path: Path) -> None:
    from lightning.pytorch import Trainer

    from tests.data_modules import Idle, Numbers

    trainer = Trainer(max_steps=1, logger=False, enable_checkpointing=False, default_root_dir=tmp_path, **QUIET)
    trainer.fit(Idle(), datamodule=Numbers())
    assert trainer.global_step == 1
