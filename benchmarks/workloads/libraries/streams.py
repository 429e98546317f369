"""Shards that are read from the beginning to the end, each library's in its own format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.workloads.libraries.made_once import BATCH, SAMPLES, decode, find_jpeg, make_once

if TYPE_CHECKING:
    import torch

SHARDS: Final = 16
SHARD_BYTES: Final = 1 << 20
SHUFFLED: Final = 4 * BATCH  # samples of a buffer


def litdata_streaming(**settings: Any) -> Any:
    """Litdata's loader over its own chunks."""
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(str(make_once("litdata", _write_litdata)), shuffle=True)
    return StreamingDataLoader(dataset, **{"batch_size": BATCH} | settings)


def _write_litdata(folder: Path) -> None:
    from litdata.streaming import Cache

    writer = Cache(input_dir=str(folder), chunk_bytes="1MB")
    for index in range(SAMPLES):
        writer[index] = decode(find_jpeg(index))
    writer.done()
    writer.merge()


def webdataset_loader(
    batch_size: int = BATCH, num_workers: int = 0, prefetch_factor: int | None = None, persistent_workers: bool = False
) -> Any:
    """Webdataset's pipeline: batched by the dataset, carried by WebLoader."""
    import webdataset

    return webdataset.WebLoader(
        webdataset_shards().batched(batch_size),
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
    )


def webdataset_shards() -> Any:
    """Webdataset's samples, for a DataLoader that batches them."""
    import webdataset

    return webdataset.WebDataset(_find_tars(), shardshuffle=SHARDS, empty_check=False).map(_decode_entry)


def webdataset_resampled() -> Any:
    """Webdataset's shards drawn again and again, with an epoch of so many samples for each worker."""
    import webdataset

    source = webdataset.WebDataset(_find_tars(), resampled=True, empty_check=False)
    return source.shuffle(SHUFFLED).map(_decode_entry).with_epoch(SAMPLES)


def _find_tars() -> list[str]:
    return sorted(map(str, make_once("webdataset", _write_tars).iterdir()))


def _decode_entry(entry: dict[str, Any]) -> torch.Tensor:
    return decode(entry["jpg"])


def _write_tars(folder: Path) -> None:
    import webdataset

    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard:02}.tar")) as writer:
            for index in range(shard, SAMPLES, SHARDS):
                writer.write({"__key__": f"{index:05}", "jpg": find_jpeg(index)})


def mosaic_streaming(**settings: Any) -> Any:
    """MosaicML's loader of its shards, which its dataset shares out by a batch size of its own."""
    dataset = _make_mosaic_dataset(BATCH)
    from streaming import StreamingDataLoader

    return StreamingDataLoader(dataset, **{"batch_size": BATCH} | settings)


def mosaic_function(
    batch_size: int = BATCH, num_workers: int = 0, prefetch_factor: int | None = None, persistent_workers: bool = False
) -> Any:
    """The same as a function that passes the batch size to both."""
    dataset = _make_mosaic_dataset(batch_size)
    from streaming import StreamingDataLoader

    return StreamingDataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
    )


def _make_mosaic_dataset(batch_size: int) -> Any:
    from streaming import StreamingDataset

    class Pictures(StreamingDataset):
        """Images of the shards, decoded as they are read."""

        def __getitem__(self, index: int) -> torch.Tensor:
            return decode(super().__getitem__(index)["jpg"])

    return Pictures(local=str(make_once("mosaic", _write_mosaic)), shuffle=True, batch_size=batch_size)


def _write_mosaic(folder: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"jpg": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for index in range(SAMPLES):
            writer.write({"jpg": find_jpeg(index)})
