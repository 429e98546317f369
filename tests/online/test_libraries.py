"""The autopilot in the training loops of libraries: the batches are the same while workers are added."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from autotune.online.attach import attach, autopilot
from autotune.online.autopilot import Options
from autotune.online.group import WorkerSettings
from autotune.online.result import read_facts
from autotune.online.script import describe_loaders
from autotune.online.windows import Window
from tests.online.test_processes import TORCHRUN, list_batches

ROOT = Path(__file__).parents[2]
LENGTH, BATCH_SIZE, EPOCHS = 1000, 4, 2
SHARED_SECONDS = "0.016"  # a sample, if two processes share the epoch: it lasts several windows also on a busy machine
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
pytestmark = [
    pytest.mark.slow,  # real training in libraries that only `make test-all` installs
    pytest.mark.filterwarnings("ignore:.*'train_dataloader'"),  # what Lightning recommends
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),  # of Lightning
    pytest.mark.usefixtures("offline", "workdir"),
]


class Waiting(Dataset[torch.Tensor]):
    """Samples that are their own index, and wait as if they were read from a disk."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.tensor([float(index)])


class WaitingRows(Waiting):
    """The same in the form that a model of transformers takes."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return {"x": sample, "labels": sample}


class Recorder(torch.nn.Module):
    """A weight that records the indices of its batches, and returns its loss as transformers expects it."""

    def __init__(self) -> None:
        super().__init__()
        self._layer = torch.nn.Linear(1, 1)
        self.seen: list[list[float]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.seen.append(x[:, 0].tolist())
        return {"loss": 1e-6 * self._layer(x).square().mean()}


def make_loader(seconds: float, workers: int = 0) -> DataLoader[torch.Tensor]:
    return DataLoader(Waiting(seconds), BATCH_SIZE, shuffle=True, num_workers=workers)


def check(seen: list[Any], plain: list[Any], loader: Any) -> None:
    """Check that batches are those without the autopilot although it has changed the workers, and that none is left."""
    assert len(plain) == EPOCHS * LENGTH // BATCH_SIZE
    assert seen == plain
    assert find_most_workers(loader) > 1  # the first epoch began with one
    check_no_workers()


def find_most_workers(loader: Any) -> int:
    """Return the largest number of workers that the autopilot has tried; on a busy machine it may choose fewer."""
    controller = loader.autopilot_state.controller
    return max(int(one.workers) for one in (controller.settings, *controller.windows))


def check_no_workers() -> None:
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert multiprocessing.active_children() == []


# Lightning


def make_lightning(loader: Callable[[], Any], *, in_data_module: bool = False, fails_at: int = -1) -> tuple[Any, Any]:
    """Make a model of Lightning and a data module with the loader, or a model with the loader and None."""
    pytorch = pytest.importorskip("lightning.pytorch")

    class Model(pytorch.LightningModule):  # type: ignore[misc, name-defined]  # its types are not read
        def __init__(self) -> None:
            super().__init__()
            self.recorder = Recorder()

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            if len(self.recorder.seen) == fails_at:
                raise ArithmeticError("the loss is not finite")
            return self.recorder(batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    class ModelWithData(Model):
        def train_dataloader(self) -> Any:
            return loader()

    class Data(pytorch.LightningDataModule):  # type: ignore[misc, name-defined]  # its types are not read
        def train_dataloader(self) -> Any:
            return loader()

    return (Model(), Data()) if in_data_module else (ModelWithData(), None)


def fit(model: Any, *data: Any, **options: Any) -> Any:
    """Train, and return the loader of the training and the batches that the model got."""
    pytorch = pytest.importorskip("lightning.pytorch")
    torch.manual_seed(7)
    trainer = pytorch.Trainer(accelerator="cpu", **({"max_epochs": EPOCHS} | QUIET | options))
    trainer.fit(model, *data)
    return trainer.train_dataloader, model.recorder.seen


@pytest.mark.parametrize("workers", [0, 1])
def test_a_model_of_lightning_gets_the_same_batches(workers: int) -> None:
    _, plain = fit(make_lightning(lambda: make_loader(0.0, workers))[0])
    loader, seen = fit(autopilot(make_lightning(lambda: make_loader(0.004, workers))[0]))
    check(seen, plain, loader)


def test_a_data_module_of_lightning_delivers_the_same_batches() -> None:
    _, plain = fit(*make_lightning(lambda: make_loader(0.0), in_data_module=True))
    model, data = make_lightning(lambda: make_loader(0.004), in_data_module=True)
    loader, seen = fit(model, autopilot(data))
    check(seen, plain, loader)


def test_a_loader_that_lightning_is_given_delivers_the_same_batches() -> None:
    _, plain = fit(make_lightning(list, in_data_module=True)[0], make_loader(0.0))
    loader, seen = fit(make_lightning(list, in_data_module=True)[0], autopilot(make_loader(0.004)))
    check(seen, plain, loader)


def test_each_loader_of_a_collection_is_tuned() -> None:
    utilities = pytest.importorskip("lightning.pytorch.utilities")
    pair = {"left": make_loader(0.0), "right": make_loader(0.0)}
    model, _ = make_lightning(lambda: utilities.CombinedLoader(pair))
    autopilot(model).train_dataloader()
    assert all(hasattr(loader, "autopilot_state") for loader in pair.values())


def test_lightning_leaves_no_worker_when_it_stops_in_the_middle_of_an_epoch() -> None:
    loader, seen = fit(autopilot(make_lightning(lambda: make_loader(0.004))[0]), max_steps=150)
    assert len(seen) == 150
    assert find_most_workers(loader) > 1
    check_no_workers()


def test_lightning_leaves_no_worker_when_the_step_fails() -> None:
    model, _ = make_lightning(lambda: make_loader(0.004), fails_at=150)
    with pytest.raises(ArithmeticError, match="not finite"):
        fit(autopilot(model))
    check_no_workers()


RANKS = """
import json, sys
from pathlib import Path
from tests.online.test_libraries import find_most_workers, fit, make_lightning, make_loader

if __name__ == "__main__":
    folder, seconds = sys.argv[1:]
    model, data = make_lightning(lambda: make_loader(float(seconds)), in_data_module=True)
    loader, seen = fit(model, data, devices=2, strategy="ddp")
    found = {"seen": seen, "workers": find_most_workers(loader)}
    Path(folder, f"{model.global_rank}.json").write_text(json.dumps(found))
"""


def test_the_sampler_that_lightning_injects_into_two_processes_is_followed(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    found = run_ranks(tmp_path, [*TORCHRUN, "-m", "autotune", "run"])
    assert [one["seen"] for one in found] == [list_batches(LENGTH, rank) for rank in range(2)]
    assert any(one["workers"] > 1 for one in found)  # the faster process waits for the gradients of the other, not data


def run_ranks(folder: Path, launcher: list[str], code: str = RANKS) -> list[Any]:
    """Run two processes, and return what each of them found."""
    script = folder / "train.py"
    script.write_text(code)
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *launcher, str(script), str(folder), SHARED_SECONDS]
    ended = subprocess.run(command, cwd=folder, env=environ, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


# Transformers


def make_trainer(seconds: float, folder: Path, workers: int, *callbacks: Any) -> Any:
    """Make a Trainer of transformers whose model records its batches."""
    transformers = pytest.importorskip("transformers")
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "output_dir": str(folder)}
    sizes = {"per_device_train_batch_size": BATCH_SIZE, "dataloader_num_workers": workers, "num_train_epochs": EPOCHS}
    arguments = transformers.TrainingArguments(use_cpu=True, **quiet, **sizes)
    rows = WaitingRows(seconds)
    return transformers.Trainer(Recorder(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[*callbacks])


def train(seconds: float, folder: Path, workers: int, *, tuned: bool) -> tuple[list[Any], Any]:
    """Train with a Trainer; return the batches that the model got, and the loader."""
    transformers = pytest.importorskip("transformers")
    loaders = []

    class Look(transformers.TrainerCallback):  # type: ignore[misc, name-defined]  # its types are not read
        def on_step_end(self, *_: Any, train_dataloader: Any, **__: Any) -> None:
            loaders.append(train_dataloader)

    trainer = make_trainer(seconds, folder, workers, Look())
    (autopilot(trainer) if tuned else trainer).train()
    return trainer.model.seen, loaders[-1]


@pytest.mark.usefixtures("fresh_accelerate")
def test_nothing_is_advised_or_saved_for_a_loader_with_which_a_trainer_evaluates(tmp_path: Path) -> None:
    trainer = make_trainer(0.0, tmp_path, 0)
    loader = trainer.get_eval_dataloader()
    attach(loader.base_dataloader, Options(profile="evaluation.json", quiet=True))
    trainer.get_eval_dataloader = lambda *_: loader
    trainer.evaluate()
    state = loader.base_dataloader.autopilot_state
    assert state.facts.is_evaluation
    state.controller.windows = {WorkerSettings(4, 2): Window(batches=10, seconds=2.0)}
    state.controller.settings, state.controller.has_converged = WorkerSettings(4, 2), True
    state._report()
    assert "Use it" not in "".join(describe_loaders({"train.py:3": state}))
    assert not Path("evaluation.json").exists()


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_trainer_of_transformers_gets_the_same_batches(workers: int, tmp_path: Path) -> None:
    plain, _ = train(0.0, tmp_path, workers, tuned=False)
    seen, loader = train(0.004, tmp_path, workers, tuned=True)
    check(seen, plain, loader.base_dataloader)
    state = loader.base_dataloader.autopilot_state
    assert read_facts(loader.base_dataloader, 1).workload.dataset_args["batch_size"] == BATCH_SIZE
    assert state.facts.workload.prepared_by == "transformers"
    assert "Use it: TrainingArguments(..., dataloader_num_workers=" in "".join(describe_loaders({"train.py:3": state}))


# accelerate


def iterate(seconds: float, *, tuned: bool, before: bool = False, **options: Any) -> tuple[list[Any], Any]:
    """Iterate over a prepared loader; return the batches, and the loader."""
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(7)
    plan = accelerate.utils.DataLoaderConfiguration(**options)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=plan)
    given = make_loader(seconds)
    loader = accelerator.prepare(autopilot(given) if tuned and before else given)
    if tuned and not before:
        assert autopilot(loader) is loader
    return [batch[:, 0].tolist() for _ in range(EPOCHS) for batch in loader], loader


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("options", [{}, {"split_batches": True}, {"dispatch_batches": True}], ids=str)
def test_a_prepared_loader_delivers_the_same_batches(options: dict[str, bool]) -> None:
    plain, _ = iterate(0.0, tuned=False, **options)
    seen, loader = iterate(0.004, tuned=True, **options)
    check(seen, plain, loader.base_dataloader)
    assert loader.base_dataloader.autopilot_state.facts.workload.prepared_by == "accelerate"


@pytest.mark.usefixtures("fresh_accelerate")
def test_a_loader_that_is_prepared_afterwards_is_not_tuned() -> None:
    plain, _ = iterate(0.0, tuned=False)
    seen, loader = iterate(0.0, tuned=True, before=True)
    assert seen == plain
    assert not hasattr(loader.base_dataloader, "autopilot_state")


ACCELERATED = """
import json, os, sys
from pathlib import Path
from torch import distributed
from tests.online.test_libraries import find_most_workers, iterate

folder, seconds = sys.argv[1:]
found = []
for options in ({}, {"split_batches": True}, {"dispatch_batches": True}):
    plain, _ = iterate(0.0, tuned=False, **options)
    seen, loader = iterate(float(seconds), tuned=True, **options)
    is_tuned = hasattr(loader.base_dataloader, "autopilot_state")
    workers = find_most_workers(loader.base_dataloader) if is_tuned else 0
    found.append({"plain": plain, "seen": seen, "workers": workers})
Path(folder, os.environ["RANK"] + ".json").write_text(json.dumps(found))
distributed.destroy_process_group()  # else gloo's threads may abort the process at its end
"""


def test_two_processes_under_accelerate_get_the_same_batches(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    found = run_ranks(tmp_path, TORCHRUN, ACCELERATED)
    assert [[case["seen"] for case in one] for one in found] == [[case["plain"] for case in one] for one in found]
    assert all(case["workers"] > 1 for case in found[0])
