"""Loaders that a trainer makes, takes or prepares."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.workloads.libraries.hugging_face import hf_transformed
from benchmarks.workloads.libraries.made_once import BATCH, USUAL, Jpegs


def accelerate_prepared(**settings: Any) -> Any:
    """A loader as `Accelerator.prepare` gives it back."""
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(DataLoader(Jpegs(), **USUAL | settings))


def trainer_function(
    batch_size: int = BATCH, num_workers: int = 0, prefetch_factor: int | None = None, persistent_workers: bool = False
) -> Any:
    """The loader that the Trainer of transformers makes, as a function of the settings."""
    return _make_by_trainer(batch_size, num_workers, prefetch_factor, persistent_workers)


def trainer_loader(
    num_workers: int = 0, prefetch_factor: int | None = None, persistent_workers: bool = False, in_order: bool = True
) -> Any:
    """The same loader as it is returned: a DataLoaderShard of accelerate."""
    return _make_by_trainer(BATCH, num_workers, prefetch_factor, persistent_workers, in_order)


def _make_by_trainer(
    batch_size: int, num_workers: int, prefetch_factor: int | None, persistent_workers: bool, in_order: bool = True
) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),
        use_cpu=True,
        remove_unused_columns=False,  # the transform makes what the model is given
        per_device_train_batch_size=batch_size,
        dataloader_num_workers=num_workers,
        dataloader_prefetch_factor=prefetch_factor,
        dataloader_persistent_workers=persistent_workers,
        dataloader_in_order=in_order,
        dataloader_pin_memory=False,
        report_to=[],
    )
    return Trainer(torch.nn.Linear(1, 1), arguments, train_dataset=hf_transformed()).get_train_dataloader()


def lightning_data_module(**settings: Any) -> Any:
    """A data module of Lightning."""
    from lightning import LightningDataModule

    class Images(LightningDataModule):
        """Images for training."""

        def train_dataloader(self) -> DataLoader[Any]:
            return _make_plain(**settings)

    return Images()


def lightning_combined(**settings: Any) -> Any:
    """Lightning's CombinedLoader, which takes from several loaders at once."""
    from lightning.pytorch.utilities import CombinedLoader

    return CombinedLoader({"train": _make_plain(**settings), "rehearsal": _make_plain()}, "min_size")


def _make_plain(**settings: Any) -> DataLoader[Any]:
    return DataLoader(Jpegs(), **USUAL | settings)
