"""A Hugging Face dataset of token sequences on disk, map-style or streamed.

The Arrow files are made once under `examples/.data/`; nothing is downloaded. datasets is not among dltune's
requirements.

    dltune --dataset examples.hf_dataset:make_dataset --step-time 5ms
    dltune --dataset examples.hf_dataset:make_stream --step-time 5ms
"""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np

FOLDER = Path(__file__).parent / ".data" / "tokens"
TOKENS = 256  # in a sequence
VOCABULARY = 32_000
SHARDS = 8  # of the streamed dataset: more workers than that have nothing to read


def make_dataset(sequences: int = 8192) -> datasets.Dataset:
    """Open the dataset, writing it the first time. It returns whole batches (`__getitems__`) as tensors.

    Args:
        sequences: Samples.
    """
    folder = FOLDER / str(sequences)
    if not folder.exists():
        _write(sequences, folder)
    return datasets.load_from_disk(folder).with_format("torch")


def make_stream(sequences: int = 8192) -> datasets.IterableDataset:
    """Open the same dataset as a stream, whose workers share its shards among themselves."""
    return make_dataset(sequences).to_iterable_dataset(num_shards=SHARDS).with_format("torch")


def _write(sequences: int, folder: Path) -> None:
    numbers = np.random.default_rng(0)
    columns = {
        "input_ids": numbers.integers(0, VOCABULARY, (sequences, TOKENS), dtype=np.int64),
        "label": numbers.integers(0, 2, sequences, dtype=np.int64),
    }
    partial = folder.with_suffix(".part")
    datasets.Dataset.from_dict(columns).save_to_disk(partial)
    partial.replace(folder)
