"""Training steps of the GPU workloads: real networks in plain torch, trained as plain training code does it.

On the CPU, where only rehearsals run, the same networks are a few units wide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from benchmarks.workloads.device_datasets import CHANNELS, CLASSES, FEATURES, VOCABULARY

Step = Callable[[Any], None]
Loss = Callable[[nn.Module, list[torch.Tensor]], torch.Tensor]
EXPANSION: Final = 4  # of the channels in a bottleneck block
HEADS: Final = 4
MAX_TOKENS: Final = 256  # that the network reads
PATCH: Final = 16  # pixels, width and height


class Bottleneck(nn.Module):
    """A residual block of three convolutions.

    Args:
        channels: Channels that come in.
        width: Channels of the middle convolution; four times as many go out.
        stride: Stride of the middle convolution.
    """

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
    """Build a residual network for pictures.

    Args:
        width: Channels of the first stage; each further one has twice as many.
        depths: Blocks of each stage: (3, 4, 6, 3) with a width of 64 has the size of a ResNet-50.

    Returns:
        The network.
    """
    stem = (nn.Conv2d(CHANNELS, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    layers: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage, depth in enumerate(depths):
        inner = width << stage
        for block in range(depth):
            layers.append(Bottleneck(channels, inner, 2 if stage and not block else 1))
            channels = EXPANSION * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


class Block(nn.Module):
    """A block of a transformer that looks back only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._before, self._after = nn.LayerNorm(width), nn.LayerNorm(width)
        self._project, self._merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self._think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Refine features of shape (batch, length, width)."""
        parts = self._project(self._before(tokens)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        tokens = tokens + self._merge(seen.transpose(1, 2).flatten(2))
        refined: torch.Tensor = tokens + self._think(self._after(tokens))
        return refined


class TokenNetwork(nn.Module):
    """A small transformer that foretells the next token."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self._words, self._places = nn.Embedding(VOCABULARY, width), nn.Embedding(MAX_TOKENS, width)
        self._blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self._read = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Score the token after each one, for ids of shape (batch, length)."""
        places = self._places(torch.arange(ids.shape[1], device=ids.device))
        scores: torch.Tensor = self._read(self._blocks(self._words(ids) + places))
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
    """Tell how wrong a network foretells the tokens of a batch of sequences."""
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
