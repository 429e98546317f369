"""Many small graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.workloads.libraries.made_once import SAMPLES, USUAL


def graphs(**settings: Any) -> Any:
    """PyTorch Geometric's loader of many small graphs."""
    from torch_geometric.loader import DataLoader as GraphLoader

    return GraphLoader(Graphs(), **USUAL | settings)


class Graphs(Dataset[Any]):
    """Graphs whose edges are found as they are asked for."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        from torch_geometric.data import Data

        generator = torch.Generator().manual_seed(index)
        places = torch.rand(160, 3, generator=generator)
        near = torch.cdist(places, places) < 0.2
        return Data(x=places, edge_index=near.nonzero().T.contiguous())
