from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch.utils.data import Dataset

from autotune.child.image_decoders import PILLOW, load_pillow, time_decoders
from autotune.child.probe_decoders import describe_faster, find_faster_decoder, read_images, time_elsewhere
from autotune.child.workload_loading import LoadedWorkload
from autotune.workload import Workload

CV2 = "cv2.imdecode"


def encode(level: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), (level, 0, 0)).save(buffer, "JPEG")
    return buffer.getvalue()


class Pictures(Dataset[Any]):
    """Opens pictures by path, or as files that are open already."""

    def __init__(self, folder: Path, *, opens: bool) -> None:
        self.opens = opens
        self.paths = [folder / f"{number}.jpg" for number in range(16)]
        for number, path in enumerate(self.paths):
            path.write_bytes(encode(number))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        if not self.opens:
            return Image.open(self.paths[index]).convert("RGB").getpixel((0, 0))
        with self.paths[index].open("rb") as file:
            return Image.open(file).convert("RGB").getpixel((0, 0))


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("opens", [False, True], ids=["by path", "as open files"])
def test_what_a_dataset_opens_is_collected_as_it_lies_on_disk(tmp_path: Path, opens: bool) -> None:
    dataset = Pictures(tmp_path, opens=opens)
    images, seconds = read_images(dataset)
    assert images == [path.read_bytes() for path in dataset.paths[::2]]
    assert seconds > 0


def test_pil_is_as_it_was_afterwards(tmp_path: Path) -> None:
    before = Image.open
    read_images(Pictures(tmp_path, opens=False))
    assert Image.open is before


def test_a_decoder_that_is_not_there_or_cannot_decode_is_left_out() -> None:
    def load_broken() -> Any:
        return lambda encoded: 1 / 0

    def load_missing() -> Any:
        raise ImportError

    decoders = {PILLOW: load_pillow, "broken": load_broken, "missing": load_missing}
    assert list(time_decoders([encode(0)], decoders)) == [PILLOW]


def test_the_time_of_a_decoder_is_that_of_one_image() -> None:
    found = time_decoders([b"1", b"2", b"3"], {"slow": lambda: lambda encoded: time.sleep(0.02)})
    assert 0.02 <= found["slow"] < 0.06


def test_decoders_are_timed_in_a_process_of_their_own() -> None:
    assert PILLOW in time_elsewhere([encode(0), encode(1)])


def test_a_decoder_that_takes_less_is_named_with_both_times() -> None:
    words = describe_faster({PILLOW: 0.004, CV2: 0.002}, 0.5) or ""
    assert words.startswith("PIL decodes for 50 % of a sample's time: cv2.imdecode, which is installed, took 2.0 ms")
    assert "where PIL took 4.0 ms" in words


@pytest.mark.parametrize(
    "seconds",
    [{PILLOW: 0.004, CV2: 0.0035}, {PILLOW: 0.004}, {CV2: 0.001}, {}],
    ids=["little gain", "no other", "PIL failed", "all failed"],
)
def test_nothing_is_said_without_a_gain_that_matters(seconds: dict[str, float]) -> None:
    assert describe_faster(seconds, 0.5) is None


def test_a_dataset_without_images_has_no_decoder() -> None:
    assert find_faster_decoder(LoadedWorkload(parts=Workload(dataset=Numbers()))) is None
