"""Datasets whose forked workers hang in a library that the training process has used before, each in its own way."""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any

import torch
from torch.utils.data import Dataset

SAMPLES = 64


class Calls(Dataset[torch.Tensor]):
    """Calls a function for each sample."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        self._call()
        return torch.tensor(index)


def make_polars() -> Dataset[torch.Tensor]:
    pl = importlib.import_module("polars")

    frame = pl.DataFrame({"key": [number % 7 for number in range(100_000)]})

    def group() -> None:
        frame.group_by("key").agg(pl.len())

    group()
    return Calls(group)


def make_lazy_polars() -> Dataset[torch.Tensor]:
    """Use Polars in whoever reads, and nowhere else: workers hang only where a process has read that forks them."""
    pl = importlib.import_module("polars")
    frame = pl.DataFrame({"key": [number % 7 for number in range(100_000)]})
    return Calls(lambda: frame.group_by("key").agg(pl.len()))


def make_tokenizers() -> Dataset[torch.Tensor]:
    library = importlib.import_module("tokenizers")
    words = library.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")
    tokenizer = library.Tokenizer(words)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()

    def encode() -> None:
        tokenizer.encode_batch(["a b c " * 100] * 100)

    encode()
    return Calls(encode)


def make_h5py() -> Dataset[torch.Tensor]:
    """Hold h5py's own lock in a thread, as one does that reads ahead, while the workers are forked."""
    import h5py

    is_held = threading.Event()

    def hold() -> None:
        with h5py._objects.phil:
            is_held.set()
            time.sleep(3600)

    def read() -> None:
        with h5py.File("x", "w", driver="core", backing_store=False) as file:
            file["x"] = 1

    threading.Thread(target=hold, daemon=True).start()
    is_held.wait()
    return Calls(read)
