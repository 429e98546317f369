"""The images that all libraries load, and the folders of their data."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

SAMPLES: Final = 3072  # epochs of seconds: in shorter ones a collection of garbage or a 0.1 s poll of a library decides
FOLDER: Final = Path(f"/tmp/dltune-library-data-{SAMPLES}")  # not in TMPDIR: each of dltune's processes has its own
DISTINCT: Final = 64  # images
SIDE: Final = 224  # pixels
CLASSES: Final = 4
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


def find_jpeg(index: int) -> bytes:
    """Give the image of a sample."""
    return make_jpegs()[index % DISTINCT]


def decode(data: bytes) -> torch.Tensor:
    """Decode and flip an image, as a transform would."""
    return flip(Image.open(io.BytesIO(data)))


def flip(image: Image.Image) -> torch.Tensor:
    """Make a tensor of an image, mirrored."""
    pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)))
    return torch.from_numpy(pixels[:, ::-1].copy()).permute(2, 0, 1)


class Jpegs(Dataset[torch.Tensor]):
    """Images in memory, decoded as they are asked for."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(find_jpeg(index))


def make_once(name: str, write: Callable[[Path], None]) -> Path:
    """Give a folder of data that `write` puts there the first time; it appears when it is complete."""
    folder = FOLDER / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
            made = Path(draft) / name
            made.mkdir()
            write(made)
            made.rename(folder)
    return folder


def find_pictures() -> Path:
    """Give a folder of images, in one folder per class."""
    return make_once("pictures", _write_pictures)


def _write_pictures(folder: Path) -> None:
    for index in range(SAMPLES):
        place = folder / f"class{index % CLASSES}" / f"{index:05}.jpg"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(find_jpeg(index))
