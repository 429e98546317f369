"""What Hugging Face's `datasets` gives: by index or as a stream, with a transform or a format of tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from benchmarks.workloads.libraries.made_once import (
    BATCH,
    CLASSES,
    SAMPLES,
    find_jpeg,
    flip,
    make_once,
)

FILES: Final = 16  # shards of a stream
SHUFFLED: Final = 4 * BATCH  # samples of a stream's buffer


def hf_transformed() -> Any:
    """By index, with a transform that is set on the dataset."""
    dataset = _load(streaming=False)
    dataset.set_transform(_transform_batch)
    return dataset


def hf_iterable() -> Any:
    """A dataset made into a stream."""
    stream = _load(streaming=False).to_iterable_dataset(num_shards=FILES)
    return stream.map(_transform_sample, remove_columns="image").with_format("torch")


def hf_streaming() -> Any:
    """A stream of files, shuffled by shards and in a buffer, without the 5 s that it sleeps at the end of an epoch."""
    from datasets import config

    config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    stream = _load(streaming=True).shuffle(seed=0, buffer_size=SHUFFLED)
    return stream.map(_transform_sample, remove_columns="image").with_format("torch")


def _load(*, streaming: bool) -> Any:
    """Load the files as `load_dataset` does, without asking the hub for anything."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder = make_once("parquet", _write_parquet)
    files = sorted(str(place) for place in folder.glob("*.parquet"))
    cache = str(folder.parent / "datasets")
    return load_dataset("parquet", data_files=files, split="train", streaming=streaming, cache_dir=cache)


def _transform_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return {"pixels": [flip(image) for image in batch["image"]], "label": batch["label"]}


def _transform_sample(sample: dict[str, Any]) -> dict[str, Any]:
    return {"pixels": flip(sample["image"])}


def _write_parquet(folder: Path) -> None:
    from datasets import Dataset, Features, Image, Value

    features = Features({"image": Image(), "label": Value("int64")})
    for number in range(FILES):
        indices = range(number, SAMPLES, FILES)
        images = [{"bytes": find_jpeg(index), "path": None} for index in indices]
        labels = [index % CLASSES for index in indices]
        Dataset.from_dict({"image": images, "label": labels}, features).to_parquet(folder / f"{number:02}.parquet")
