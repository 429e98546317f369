"""Loaders of other libraries, each made of the settings as its users would; the images are made here.

Each function takes settings of DataLoader as keywords. Called without, those that `--dataset` names return what their
users have today; those that `--loader` names are called by dltune with the settings of each trial.
"""

from __future__ import annotations

import ast
import io
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

SAMPLES: Final = 768
DISTINCT: Final = 64  # images
SIDE: Final = 224  # pixels
BATCH: Final = 32
USUAL: Final[dict[str, Any]] = {"batch_size": BATCH, "shuffle": True}


@cache
def make_jpegs() -> tuple[bytes, ...]:
    """Make images that take about a millisecond to decode."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(DISTINCT):
        coarse = generator.integers(0, 255, (28, 28, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((SIDE, SIDE)).save(buffer, "JPEG")
        found.append(buffer.getvalue())
    return tuple(found)


def decode(data: bytes) -> torch.Tensor:
    """Decode and flip an image, as a transform would."""
    image = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE)))
    return torch.from_numpy(image[:, ::-1].copy()).permute(2, 0, 1)


class Jpegs(Dataset[torch.Tensor]):
    """Images in memory, decoded as they are asked for."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(make_jpegs()[index % DISTINCT])


@cache
def find_folder(name: str) -> Path:
    """Give a folder for data that is made once."""
    folder = Path(tempfile.gettempdir()) / "dltune-bench-libraries" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def timm_multi_epochs(**settings: Any) -> Any:
    """Timm's loader that never restarts its workers; its file is read alone, for timm as a whole wants torchvision."""
    place = Path(str(find_spec("timm").origin)).parent / "data" / "loader.py"  # type: ignore[union-attr]  # installed
    wanted = [node for node in ast.parse(place.read_text()).body if getattr(node, "name", "") in NEVER_RESTARTING]
    names: dict[str, Any] = {"torch": torch, "__name__": "timm.data.loader"}
    exec(compile(ast.Module(wanted, []), str(place), "exec"), names)  # noqa: S102  # of an installed package
    return names["MultiEpochsDataLoader"](Jpegs(), **USUAL | settings)


NEVER_RESTARTING: Final = ("MultiEpochsDataLoader", "_RepeatSampler")


def stateful(**settings: Any) -> Any:
    """Torchdata's loader that can be stopped in the middle of an epoch and resumed."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Jpegs(), **USUAL | settings)


def monai_threads(**settings: Any) -> Any:
    """MONAI's loader that reads ahead in a thread."""
    from monai.data import ThreadDataLoader

    return ThreadDataLoader(Jpegs(), **USUAL | settings)


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


def litdata_streaming(**settings: Any) -> Any:
    """Litdata's loader over its own chunks."""
    from litdata import StreamingDataLoader, StreamingDataset

    return StreamingDataLoader(
        StreamingDataset(str(_write_litdata()), shuffle=True), **{"batch_size": BATCH} | settings
    )


@cache
def _write_litdata() -> Path:
    from litdata.streaming import Cache

    folder = find_folder("litdata")
    if not (folder / "index.json").exists():
        writer = Cache(input_dir=str(folder), chunk_bytes="1MB")
        for index in range(SAMPLES):
            writer[index] = decode(make_jpegs()[index % DISTINCT])
        writer.done()
        writer.merge()
    return folder


def webdataset_loader(
    batch_size: int = BATCH, num_workers: int = 0, prefetch_factor: int | None = None, persistent_workers: bool = False
) -> Any:
    """Webdataset's pipeline: batched by the dataset, carried by WebLoader."""
    import webdataset

    folder = find_folder("webdataset")
    if len(list(folder.iterdir())) < SHARDS:
        _write_shards(folder)
    source = webdataset.WebDataset(sorted(map(str, folder.iterdir())), shardshuffle=SHARDS, empty_check=False)
    dataset = source.map(_decode_entry).batched(batch_size)
    return webdataset.WebLoader(
        dataset,
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
    )


SHARDS: Final = 16


def _decode_entry(entry: dict[str, Any]) -> torch.Tensor:
    return decode(entry["jpg"])


def _write_shards(folder: Path) -> None:
    import webdataset

    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard:02}.tar")) as writer:
            for index in range(shard, SAMPLES, SHARDS):
                writer.write({"__key__": f"{index:05}", "jpg": make_jpegs()[index % DISTINCT]})


def accelerate_prepared(**settings: Any) -> Any:
    """A loader as `Accelerator.prepare` gives it back."""
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(DataLoader(Jpegs(), **USUAL | settings))


def torchdata_nodes(batch_size: int = BATCH, num_workers: int = 1, prefetch_factor: int | None = 2) -> Any:
    """Torchdata's nodes, with threads instead of processes."""
    from torchdata.nodes import Batcher, IterableWrapper, Loader, ParallelMapper, Prefetcher

    node = Batcher(IterableWrapper(range(SAMPLES)), batch_size=batch_size)
    node = ParallelMapper(node, _load_batch, num_workers=max(1, num_workers), method="thread")
    return Loader(Prefetcher(node, prefetch_factor=prefetch_factor or 1))


def _load_batch(indices: list[int]) -> torch.Tensor:
    return torch.stack([decode(make_jpegs()[index % DISTINCT]) for index in indices])


def hand_written(batch_size: int = BATCH) -> Iterator[torch.Tensor]:
    """A generator without workers: there is nothing to set but the batch size."""
    order = torch.randperm(SAMPLES).tolist()
    return (_load_batch(order[start : start + batch_size]) for start in range(0, SAMPLES, batch_size))
