"""Factories of other libraries' loaders, which share the data out by the rank."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.misbehaving import SAMPLES, Honest


class Named(Dataset[dict[str, torch.Tensor]]):
    """Samples as transformers' collator takes them."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"features": torch.full((16,), float(index)), "labels": torch.zeros(1)}


class Model(nn.Module):
    """A model as small as can be, which transformers and Lightning can train."""

    def __init__(self) -> None:
        super().__init__()
        self._layer = nn.Linear(16, 1)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self._layer(features) - labels).square().mean()}


def make_prepared(batch_size: int = 8, num_workers: int = 0, **settings: Any) -> Any:
    from accelerate import Accelerator

    loader = DataLoader(Honest(SAMPLES), batch_size=batch_size, num_workers=num_workers, **settings)
    return Accelerator(cpu=True).prepare(loader)


def make_trainer(**arguments: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    usual: dict[str, Any] = {"use_cpu": True, "report_to": [], "save_strategy": "no"}
    settings = TrainingArguments(output_dir=tempfile.gettempdir(), **usual | arguments)
    return Trainer(model=Model(), args=settings, train_dataset=Named())


def make_trainer_loader(batch_size: int = 8, num_workers: int = 0) -> Any:
    trainer = make_trainer(per_device_train_batch_size=batch_size, dataloader_num_workers=num_workers)
    return trainer.get_train_dataloader()


def make_data_module() -> Any:
    from lightning import LightningDataModule

    class Data(LightningDataModule):  # type: ignore[misc]  # Lightning has no types here
        def train_dataloader(self) -> Any:
            return DataLoader(Honest(SAMPLES), batch_size=8, shuffle=True)

    return Data()
