"""Lets torchvision be imported beside a torch without CUDA, for which the package index has no build of it.

Its compiled operators cannot be loaded then, and it describes two of them to torch all the same. Nothing that loads
data calls them: transforms are made of torch's own.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Final

import torch

DESCRIBED: Final = ("nms", "qnms")
SIGNATURE: Final = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def admit_torchvision() -> torch.library.Library | None:
    """Import torchvision; where that fails for want of operators, name them to torch and import it again.

    Returns:
        What names them, kept for as long as the process lives; None where torchvision brought its own.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in DESCRIBED:
            library.define(name + SIGNATURE)
        import_module("torchvision")
        return library
    return None
