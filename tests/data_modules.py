"""Data modules, datasets and loaders of other libraries."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import Accelerator
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

SAMPLES = 64


class Numbers(LightningDataModule):
    """Requires Lightning's order of calls."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self._calls: list[str] = []
        self._batch_size = batch_size

    def prepare_data(self) -> None:
        self._calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self._calls.append(stage)

    def train_dataloader(self) -> Any:
        assert self._calls == ["prepare_data", "fit"]
        return DataLoader(make_numbers(), batch_size=self._batch_size, num_workers=1, prefetch_factor=3, drop_last=True)


class SeveralLoaders(Numbers):
    def train_dataloader(self) -> Any:
        return [DataLoader(make_numbers()), DataLoader(make_numbers())]


class StatefulNumbers(Numbers):
    def train_dataloader(self) -> Any:
        return StatefulDataLoader(make_numbers(), batch_size=8)


class FilesOfItsOwn(LightningDataModule):
    """Reads a folder that is removed with the module."""

    def prepare_data(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        for number in range(SAMPLES):
            Path(self._folder.name, str(number)).write_text(str(number))

    def train_dataloader(self) -> Any:
        return DataLoader(Files(Path(self._folder.name)), batch_size=8)


class Files(Dataset[float]):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> float:
        return float((self._folder / str(index)).read_text())


class ModelWithData(LightningModule):
    """A model with its own data."""

    def train_dataloader(self) -> Any:
        return DataLoader(make_numbers(), batch_size=8)


class Idle(LightningModule):
    """Trains one weight."""

    def __init__(self) -> None:
        super().__init__()
        self._layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self._layer(batch[0].unsqueeze(1)).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def make_numbers() -> TensorDataset:
    return TensorDataset(torch.arange(float(SAMPLES)))


MODEL = ModelWithData()


def make_splits() -> Any:
    numbers = datasets.Dataset.from_dict({"number": list(range(SAMPLES))})
    return numbers.train_test_split(test_size=0.5, seed=0)


def make_combined() -> Any:
    return CombinedLoader({"left": DataLoader(make_numbers()), "right": DataLoader(make_numbers())})


def make_prepared(batch_size: int = 8, num_workers: int = 0) -> Any:
    return Accelerator(cpu=True).prepare(DataLoader(make_numbers(), batch_size=batch_size, num_workers=num_workers))


def make_trainer_loader(batch_size: int = 8, num_workers: int = 1) -> Any:
    """Make the loader of transformers' Trainer."""
    from transformers import Trainer, TrainingArguments

    sizes = {"per_device_train_batch_size": batch_size, "dataloader_num_workers": num_workers}
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(), use_cpu=True, report_to=[], remove_unused_columns=False, **sizes
    )
    rows = [{"input_ids": [number], "labels": [number]} for number in range(SAMPLES)]
    return Trainer(torch.nn.Linear(1, 1), arguments, train_dataset=rows).get_train_dataloader()
