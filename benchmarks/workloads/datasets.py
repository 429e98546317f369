"""Datasets of our own making that differ in kind: what keeps a loader busy, and how its samples are reached.

Each factory takes no argument and writes no file. The sizes are chosen so that a training run of ten epochs takes
two to five seconds at a good configuration on two CPUs.
"""

from __future__ import annotations

import io
import os
import random
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

Sample = tuple[torch.Tensor, int]

FEATURES: Final = 16  # of a small sample
IMAGES: Final = 16  # encoded ones that the decoding dataset goes through again and again
IMAGE_SIDE: Final = 448  # pixels; decoding and resizing take about 2 ms of CPU
CROP_SIDE: Final = 128  # pixels
TAIL_MEAN_SECONDS: Final = 0.005
TAIL_SPREAD: Final = 1.6  # of the logarithm: one sample in a hundred takes 50 ms, a few take 100 to 200 ms
TAIL_SEED: Final = 3
ROW_BYTES: Final = 40 * 1024  # unpacking so many takes about 0.1 ms of CPU
CHUNKS: Final = 64
CHUNK_RECORDS: Final = 48  # no multiple of the batch size: each worker ends with a partial batch of its own
LARGE_FLOATS: Final = 1024 * 1024  # 4 MiB


class EncodedImages(Dataset[Sample]):
    """JPEG images in memory that are decoded and made smaller: nothing but CPU time."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._encoded = [_encode_image(seed) for seed in range(IMAGES)]

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        with Image.open(io.BytesIO(self._encoded[index % IMAGES])) as image:
            small = image.convert("RGB").resize((CROP_SIDE, CROP_SIDE), Image.Resampling.BILINEAR)
        pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        return pixels.view(CROP_SIDE, CROP_SIDE, 3).permute(2, 0, 1) / 255, index % 10


def _encode_image(seed: int) -> bytes:
    """Make a JPEG that compresses about as well as a photograph."""
    from PIL import Image

    coarse = IMAGE_SIDE // 8
    noise = Image.frombytes("RGB", (coarse, coarse), random.Random(seed).randbytes(3 * coarse * coarse))
    stream = io.BytesIO()
    noise.resize((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.BICUBIC).save(stream, format="JPEG", quality=88)
    return stream.getvalue()


class WaitingReads(Dataset[Sample]):
    """Small samples that are waited for, from a file that every process opens for itself when it needs its first one.

    Each is waited for as long as the others or as long as chance would have it; by default the file is open at once.
    """

    def __init__(self, seconds: Sequence[float], open_seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._open_seconds = open_seconds
        self._opened_by: int | None = None

    def __len__(self) -> int:
        return len(self._seconds)

    def __getitem__(self, index: int) -> Sample:
        if self._open_seconds and self._opened_by != os.getpid():  # a handle must not be shared with the parent
            time.sleep(self._open_seconds)
            self._opened_by = os.getpid()
        time.sleep(self._seconds[index])
        return torch.full((FEATURES,), float(index)), index % 10


class RemoteStore(Dataset[torch.Tensor]):
    """A store in which a query takes as long for a whole batch as for one sample."""

    def __init__(self, samples: int, seconds: float) -> None:
        self._samples = samples
        self._seconds = seconds

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Fetch all samples of a batch by one query."""
        time.sleep(self._seconds)
        return [self.unpack(index) for index in indices]

    def unpack(self, index: int) -> torch.Tensor:
        """Make a sample of what was fetched."""
        raise NotImplementedError


class PackedRows(RemoteStore):
    """Rows of a remote table, whose unpacking takes CPU time."""

    def __init__(self, samples: int, seconds: float) -> None:
        super().__init__(samples, seconds)
        letters = random.Random(0).choices(b"abcdefgh     ", k=ROW_BYTES)
        self._packed = zlib.compress(bytes(letters), 1)

    def unpack(self, index: int) -> torch.Tensor:
        """Unpack a row, all of which are alike."""
        return torch.frombuffer(bytearray(zlib.decompress(self._packed)), dtype=torch.uint8)


class ChunkStream(IterableDataset[torch.Tensor]):
    """Records that arrive in chunks, each after a wait; each worker fetches every n-th chunk."""

    def __init__(self, chunks: int, seconds: float) -> None:
        self._chunks = chunks
        self._seconds = seconds

    def __len__(self) -> int:
        return self._chunks * CHUNK_RECORDS

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for chunk in range(first, self._chunks, stride):
            time.sleep(self._seconds)
            yield from torch.full((CHUNK_RECORDS, FEATURES), float(chunk))


class LargeSamples(Dataset[torch.Tensor]):
    """Samples of 4 MiB that cost nothing but their copies."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._source = torch.ones(LARGE_FLOATS)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._source.clone()


def make_decode() -> EncodedImages:
    """Make the dataset that decodes: about 2 ms of CPU a sample."""
    return EncodedImages(samples=384)


def make_reads() -> WaitingReads:
    """Make the dataset that waits 5 ms for each sample."""
    return WaitingReads([0.005] * 640)


def make_heavy_tail() -> WaitingReads:
    """Make the dataset that waits 5 ms in the mean, and now and then twenty times as long."""
    chance = random.Random(TAIL_SEED)
    raw = [chance.lognormvariate(0.0, TAIL_SPREAD) for _ in range(640)]
    scale = TAIL_MEAN_SECONDS * len(raw) / sum(raw)
    return WaitingReads([scale * seconds for seconds in raw])


def make_queries() -> PackedRows:
    """Make the dataset that answers whole batches: 20 ms a batch, and 0.1 ms of CPU a sample."""
    return PackedRows(samples=1280, seconds=0.020)


def make_stream() -> ChunkStream:
    """Make the iterable dataset: 64 chunks, 30 ms each."""
    return ChunkStream(CHUNKS, seconds=0.030)


def make_memory() -> TensorDataset:
    """Make the dataset in memory: workers only cost."""
    return TensorDataset(torch.randn(8192, 64), torch.arange(8192) % 10)


def make_step() -> Callable[[list[torch.Tensor]], None]:
    """Make the step of a small network on the rows in memory: 2 to 3 ms on two CPUs, all of them busy."""
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: list[torch.Tensor]) -> None:
        rows, labels = batch
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(nn.functional.cross_entropy(model(rows), labels))
        optimizer.step()

    return step


def make_large() -> LargeSamples:
    """Make the dataset of large samples."""
    return LargeSamples(samples=128)


def make_slow_start() -> WaitingReads:
    """Make the dataset whose processes take 0.3 s for their first sample, and whose epochs are short."""
    return WaitingReads([0.003] * 256, open_seconds=0.3)
