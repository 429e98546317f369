"""Workloads of the GPU: datasets that take the sizes of a rehearsal, and real networks in plain torch.

On the CPU, where only rehearsals run, the networks are a few units wide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from benchmarks.workloads.datasets import EncodedImages, RemoteStore

Step = Callable[[Any], None]
Loss = Callable[[nn.Module, list[torch.Tensor]], torch.Tensor]
EXPANSION: Final = 4  # of the channels in a bottleneck block
HEADS: Final = 4
MAX_TOKENS: Final = 256  # that the network reads
PATCH: Final = 16  # pixels, width and height
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
    """Make the dataset of token sequences, one longer than what the network reads: it predicts the next token."""
    return TokenRows(samples, length, QUERY_SECONDS)


class Bottleneck(nn.Module):
    """A residual block of three convolutions, the middle one with `width` channels and a stride."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self._body = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        same = stride == 1 and channels == out
        self._side = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Refine features of shape (batch, channels, height, width)."""
        return torch.relu(self._body(pixels) + self._side(pixels))


def build_residual_network(width: int, depths: tuple[int, ...]) -> nn.Sequential:
    """Build a residual network; with a width of 64 and depths of (3, 4, 6, 3) it has the size of a ResNet-50."""
    stem = (nn.Conv2d(CHANNELS, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    layers: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage, depth in enumerate(depths):
        inner = width << stage
        for block in range(depth):
            layers.append(Bottleneck(channels, inner, 2 if stage and not block else 1))
            channels = EXPANSION * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


class TokenNetwork(nn.Module):
    """A small transformer that predicts the next token."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self._words, self._places = nn.Embedding(VOCABULARY, width), nn.Embedding(MAX_TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=0.0, batch_first=True)
        self._blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self._read = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Score the token after each one, for ids of shape (batch, length)."""
        length = ids.shape[1]
        places = self._places(torch.arange(length, device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        scores: torch.Tensor = self._read(self._blocks(self._words(ids) + places, mask, is_causal=True))
        return scores


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor as careful training code does: without waiting where its memory is pinned."""
    return tensor.to(device, non_blocking=tensor.is_pinned())


def measure_class_loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Tell how wrong the classes are that a network sees in a batch of (samples, labels)."""
    samples, labels = batch
    return nn.functional.cross_entropy(model(samples), labels)


def measure_picture_loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Tell the same of pictures, laid out in the way in which convolutions are fastest in bfloat16."""
    pixels, labels = batch
    return measure_class_loss(model, [pixels.contiguous(memory_format=torch.channels_last), labels])


def measure_token_loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Tell how wrong a network predicts the tokens of a batch of sequences."""
    (ids,) = batch
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def train_on(model: nn.Module, measure_loss: Loss, device: torch.device) -> Step:
    """Make the step: copy, forward in bfloat16 on CUDA, backward, optimizer; a batch may be on the device already."""
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(batch: Any) -> None:
        parts = [batch] if isinstance(batch, torch.Tensor) else batch
        sent = [send(part, device) for part in parts]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = measure_loss(model, sent)
        loss.backward()
        optimizer.step()

    return step


def make_jpeg_step(device: torch.device) -> Step:
    """Train a network of the size of a ResNet-50."""
    network = build_residual_network(4, (1,)) if device.type == "cpu" else build_residual_network(64, (3, 4, 6, 3))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types leave it out
    return train_on(network, measure_picture_loss, device)


def make_floats_step(device: torch.device) -> Step:
    """Train one convolution over patches, which takes the device a fraction of the time that the copy takes."""
    layers = (nn.Conv2d(CHANNELS, 8, PATCH, PATCH), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))
    return train_on(nn.Sequential(*layers), measure_class_loss, device)


def make_tabular_step(device: torch.device) -> Step:
    """Train a small perceptron."""
    width = 16 if device.type == "cpu" else 256
    layers = (nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES))
    return train_on(nn.Sequential(*layers), measure_class_loss, device)


def make_tokens_step(device: torch.device) -> Step:
    """Train a small transformer."""
    network = TokenNetwork(16, 1) if device.type == "cpu" else TokenNetwork(256, 4)
    return train_on(network, measure_token_loss, device)
