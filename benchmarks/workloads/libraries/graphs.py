"""Graphs: many small ones, and the surroundings of nodes in a large one."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from torch.utils.data import Dataset

from benchmarks.workloads.libraries.made_once import SAMPLES, USUAL
from benchmarks.workloads.libraries.torchvision_import import admit_torchvision

NODES: Final = 20_000
EDGES: Final = 400_000
FEATURES: Final = 64
SAMPLED: Final = (15, 10)  # neighbours of a node, and of each of those


def graphs(**settings: Any) -> Any:
    """PyTorch Geometric's loader of many small graphs."""
    admit_torchvision()
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


def neighbours(**settings: Any) -> Any:
    """PyTorch Geometric's loader of nodes with some of their neighbours; wants pyg-lib or torch-sparse."""
    admit_torchvision()
    from torch_geometric.loader import NeighborLoader

    return NeighborLoader(_make_graph(), list(SAMPLED), input_nodes=torch.arange(SAMPLES), **USUAL | settings)


@cache
def _make_graph() -> Any:
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, EDGES), generator=generator)
    return Data(x=torch.rand(NODES, FEATURES, generator=generator), edge_index=edges)
