"""Would another library that is installed decode the dataset's images faster than PIL does?

Libraries are imported, and images decoded, in a process of its own: they may leave threads that workers would inherit.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from autotune.child.fresh_interpreter import ask_fresh_interpreter
from autotune.child.image_decoders import DECODERS, PILLOW, load_pillow, time_decoders
from autotune.child.probe_data import keep_chances
from autotune.child.probe_workers import single_thread
from autotune.child.workload_loading import LoadedWorkload
from autotune.units import format_percent, format_seconds

MAX_IMAGES: Final = 8
MAX_IMAGE_BYTES: Final = 16 << 20  # of an encoded one; larger ones are not looked at
READ_SECONDS: Final = 0.25  # spent on reading samples
MAX_TIMING_SECONDS: Final = 20.0  # then nothing is said of it
MIN_SHARE: Final = 0.2  # of a sample's time that decoding by PIL takes, for another decoder to matter
MAX_RATIO: Final = 0.8  # of PIL's time that another decoder may take, to be worth a change
TIMING: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from pathlib import Path
from autotune.child.image_decoders import time_decoders
print(json.dumps(time_decoders([path.read_bytes() for path in Path(sys.argv[2]).iterdir()])))
"""


def find_faster_decoder(workload: LoadedWorkload) -> str | None:
    """Say which decoder took less for images of this dataset than PIL, which decodes them now; None where none did."""
    if "PIL.Image" not in sys.modules or workload.kind != "map" or workload.is_opaque:
        return None
    others = {name.partition(".")[0] for name in DECODERS if name != PILLOW}
    if not any(find_spec(name) for name in others):
        return None
    try:
        with keep_chances(), single_thread():
            images, sample_seconds = read_images(workload.parts.dataset)
            pillow = time_decoders(images, {PILLOW: load_pillow}).get(PILLOW, 0.0)
    except Exception:  # whatever it is, the trials will meet it and name it
        return None
    if not MIN_SHARE * sample_seconds <= pillow <= sample_seconds:  # more: the dataset decodes in a cheaper way
        return None
    return describe_faster(time_elsewhere(images), pillow / sample_seconds)


def describe_faster(seconds: Mapping[str, float], share: float) -> str | None:
    """Say by what a decoder beats PIL, given what each takes for an image; `share` is PIL's, of a sample's time."""
    best = min(seconds, key=lambda name: seconds[name], default=PILLOW)
    if PILLOW not in seconds or seconds[best] > MAX_RATIO * seconds[PILLOW]:
        return None
    return (
        f"PIL decodes for {format_percent(share)} of a sample's time: {best}, which is installed, took "
        f"{format_seconds(seconds[best])} for images of this dataset where PIL took {format_seconds(seconds[PILLOW])}. "
        "Their pixels may differ by a level or two."
    )


def read_images(dataset: Any) -> tuple[list[bytes], float]:
    """Read samples spread over a dataset; gives the encoded images that they open by PIL, and seconds per image."""
    indices = range(0, len(dataset), max(1, len(dataset) // MAX_IMAGES))[:MAX_IMAGES]
    samples, began = 0, time.perf_counter()
    for index in indices:
        dataset[index]
        samples += 1
        if time.perf_counter() - began > READ_SECONDS:
            break
    seconds = time.perf_counter() - began
    with _watch_opened() as images:
        for index in indices[:samples]:
            dataset[index]
    return images, seconds / max(1, len(images))


@contextmanager
def _watch_opened() -> Iterator[list[bytes]]:
    """Collect what PIL is given to open."""
    from PIL import Image

    opened: list[bytes] = []
    original = Image.open

    def open_and_note(file: Any, *args: Any, **options: Any) -> Any:
        image = original(file, *args, **options)
        opened.append(_read_all(file))
        return image

    Image.open = open_and_note  # type: ignore[assignment]  # it takes whatever that takes
    try:
        yield opened
    finally:
        Image.open = original


def _read_all(file: Any) -> bytes:
    """Read a file from its beginning, and leave it where it was."""
    if isinstance(file, str | Path):
        with Path(file).open("rb") as content:
            return content.read(MAX_IMAGE_BYTES)
    position = file.tell()
    file.seek(0)
    content = file.read(MAX_IMAGE_BYTES)
    file.seek(position)
    return bytes(content)


def time_elsewhere(images: Sequence[bytes]) -> dict[str, float]:
    """Time in a fresh interpreter what each decoder takes for an image, in seconds; nothing where that fails there."""
    with tempfile.TemporaryDirectory() as folder:
        for number, image in enumerate(images):
            (Path(folder) / str(number)).write_bytes(image)
        found: dict[str, float] = ask_fresh_interpreter(TIMING, folder, timeout_seconds=MAX_TIMING_SECONDS) or {}
    return found
