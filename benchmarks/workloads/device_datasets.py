"""Datasets of the GPU workloads. Each factory takes the sizes that a rehearsal makes smaller, and writes no file."""

from __future__ import annotations

from typing import Final

import torch
from torch.utils.data import Dataset, TensorDataset

from benchmarks.workloads.datasets import EncodedImages, RemoteStore

CLASSES: Final = 10
CHANNELS: Final = 3
SOURCES: Final = 16  # float images that the dataset copies its samples from
FEATURES: Final = 64  # of a row
QUERY_SECONDS: Final = 0.02  # for a batch of token sequences, however large
VOCABULARY: Final = 1024
CORPUS_TOKENS: Final = 1 << 20


class FloatImages(Dataset[tuple[torch.Tensor, int]]):
    """Float images in memory, `side` pixels wide and high: a sample costs its copies and nothing else."""

    def __init__(self, samples: int, side: int) -> None:
        self._samples = samples
        self._sources = torch.rand(SOURCES, CHANNELS, side, side)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._sources[index % SOURCES].clone(), index % CLASSES


class TokenRows(RemoteStore):
    """Token sequences of a remote store."""

    def __init__(self, samples: int, length: int, seconds: float) -> None:
        super().__init__(samples, seconds)
        self._length = length
        self._corpus = torch.randint(VOCABULARY, (CORPUS_TOKENS,), generator=torch.Generator().manual_seed(0))

    def unpack(self, index: int) -> torch.Tensor:
        """Cut a sequence out of the corpus."""
        start = index % (CORPUS_TOKENS // self._length) * self._length
        return self._corpus[start:][: self._length]


def make_jpeg(samples: int = 4096) -> EncodedImages:
    """Make the dataset that decodes JPEG images to 3 x 128 x 128: about 2 ms of CPU a sample."""
    return EncodedImages(samples)


def make_floats(samples: int = 1024, side: int = 512) -> FloatImages:
    """Make the dataset of float images of 3 MiB."""
    return FloatImages(samples, side)


def make_tabular(samples: int = 131_072) -> TensorDataset:
    """Make the table in memory: 64 features a row."""
    return TensorDataset(torch.randn(samples, FEATURES), torch.arange(samples) % CLASSES)


def make_tokens(samples: int = 8192, length: int = 257) -> TokenRows:
    """Make the dataset of token sequences, one longer than what the network reads: it foretells the next token."""
    return TokenRows(samples, length, QUERY_SECONDS)
