"""Which of the libraries that are installed decodes the same images the soonest?"""

from __future__ import annotations

import importlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

PASSES: Final = 3  # over all images; the fastest counts, and the first one fills caches

Decode = Callable[[bytes], Any]
"""Makes an array of pixels, red, green and blue, of an encoded image."""


def load_pillow() -> Decode:
    """Import PIL."""
    image, numpy = importlib.import_module("PIL.Image"), importlib.import_module("numpy")
    return lambda encoded: numpy.asarray(image.open(io.BytesIO(encoded)).convert("RGB"))


def load_opencv() -> Decode:
    """Import OpenCV, which is to take one thread, as in a worker."""
    cv2, numpy = importlib.import_module("cv2"), importlib.import_module("numpy")
    cv2.setNumThreads(1)

    def decode(encoded: bytes) -> Any:
        return cv2.cvtColor(cv2.imdecode(numpy.frombuffer(encoded, "uint8"), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)

    return decode


def load_torchcodec() -> Decode:
    """Import torchcodec, which decodes images from version 0.16 on."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    decoders = importlib.import_module("torchcodec.decoders")
    return lambda encoded: decoders.decode_image(encoded, mode="RGB")


def load_torchvision() -> Decode:
    """Import torchvision, whose own decoders later versions leave to torchcodec."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    reader = importlib.import_module("torchvision.io")
    return lambda encoded: reader.decode_image(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), mode="RGB")


PILLOW: Final = "PIL.Image.open"
DECODERS: Final[Mapping[str, Callable[[], Decode]]] = MappingProxyType(
    {
        PILLOW: load_pillow,
        "cv2.imdecode": load_opencv,
        "torchcodec.decoders.decode_image": load_torchcodec,
        "torchvision.io.decode_image": load_torchvision,
    }
)


def time_decoders(images: Sequence[bytes], decoders: Mapping[str, Callable[[], Decode]] = DECODERS) -> dict[str, float]:
    """Time all that can be imported and can decode these images, in seconds an image."""
    seconds = {name: _time_decoder(load, images) for name, load in decoders.items()}
    return {name: found for name, found in seconds.items() if found is not None}


def _time_decoder(load: Callable[[], Decode], images: Sequence[bytes]) -> float | None:
    try:
        decode = load()
        return min(_time_pass(decode, images) for _ in range(PASSES)) / len(images)
    except Exception:  # it is not there, too old, or does not know the format
        return None


def _time_pass(decode: Decode, images: Sequence[bytes]) -> float:
    began = time.perf_counter()
    for encoded in images:
        decode(encoded)
    return time.perf_counter() - began
