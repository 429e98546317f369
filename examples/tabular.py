"""A table in memory, for which workers only cost time.

dltune --dataset examples.tabular:make_dataset --batch-size 256
"""

from __future__ import annotations

import torch
from torch.utils.data import Dataset, TensorDataset


def make_dataset(rows: int = 200_000, columns: int = 32) -> Dataset[tuple[torch.Tensor, ...]]:
    """Make a table of random numbers with a target column.

    Args:
        rows: Samples.
        columns: Features of a sample.
    """
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(rows, columns, generator=generator)
    return TensorDataset(features, features.sum(dim=1))
