"""A Lightning data module over a table on disk, as `--dataset` and LightningCLI take it.

The table is made once under `examples/.data/`; nothing is downloaded. Lightning is not among dltune's requirements.

    dltune --dataset examples.lightning_module:TableModule --step-time 2ms
    dltune export dltune.json --to lightning -o tuned.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(__file__).parent / ".data" / "tables"
FEATURES = 256

Sample = tuple[torch.Tensor, torch.Tensor]


class TableFile(Dataset[Sample]):
    """Rows of a float32 table that stays on disk: features, and their sum as the target.

    Args:
        path: The table, as numpy saves it.
    """

    def __init__(self, path: Path) -> None:
        self._rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        row = torch.from_numpy(self._rows[index].copy())
        return row, row.sum()


class TableModule(LightningDataModule):
    """Hands out the table with a loader whose arguments can come from a LightningCLI config.

    The arguments other than `rows` are those of DataLoader, with its defaults but for `batch_size`.
    """

    def __init__(
        self,
        rows: int = 20_000,
        batch_size: int = 32,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        in_order: bool = True,
    ) -> None:
        super().__init__()
        self._rows = rows
        self._path = FOLDER / f"{rows}.npy"
        self._loader: dict[str, Any] = {
            "batch_size": batch_size,
            "num_workers": num_workers,
            "prefetch_factor": prefetch_factor,
            "pin_memory": pin_memory,
            "persistent_workers": persistent_workers,
            "in_order": in_order,
        }

    def prepare_data(self) -> None:
        """Write the table the first time."""
        if self._path.exists():
            return
        FOLDER.mkdir(parents=True, exist_ok=True)
        table = np.random.default_rng(0).standard_normal((self._rows, FEATURES), dtype=np.float32)
        with self._path.with_suffix(".part").open("wb") as part:
            np.save(part, table)
        self._path.with_suffix(".part").replace(self._path)

    def setup(self, stage: str) -> None:
        """Open the table."""
        self._table = TableFile(self._path)

    def train_dataloader(self) -> DataLoader[Sample]:
        """Load the table shuffled."""
        return DataLoader(self._table, shuffle=True, **self._loader)
