"""A reader of shards: an iterable dataset whose workers share the shard files among themselves.

Each shard is a file of float32 records; reading one waits a little, as an object store does.

    dltune --dataset examples.shards:make_dataset --batch-size 64
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

FOLDER = Path(__file__).parent / ".data" / "shards"
SHARDS = 32
RECORDS = 256  # in a shard
FEATURES = 1024  # in a record
FETCH_SECONDS = 0.05


class ShardReader(IterableDataset[torch.Tensor]):
    """Records of all shards; each worker reads every n-th shard.

    Args:
        paths: The shard files.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths) * RECORDS

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for path in self._paths[first::step]:
            time.sleep(FETCH_SECONDS)
            for record in np.load(path):
                yield torch.from_numpy(record)


def make_dataset() -> ShardReader:
    """Make the reader, writing its shards the first time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths = [FOLDER / f"{number:03}.npy" for number in range(SHARDS)]
    for number, path in enumerate(paths):
        if not path.exists():
            records = np.random.default_rng(number).standard_normal((RECORDS, FEATURES), dtype=np.float32)
            with path.with_suffix(".part").open("wb") as part:
                np.save(part, records)
            path.with_suffix(".part").replace(path)
    return ShardReader(paths)
