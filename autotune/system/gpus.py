"""Lists accelerators without starting torch or CUDA, from the driver's lists and the device files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from autotune.system.kernel_files import DEV, PROC, read_text

VISIBLE_DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class _Gpu(NamedTuple):
    model: str
    uuid: str


def read_gpus(proc: Path = PROC, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Name the NVIDIA GPUs that a training process here would see, as `torch.cuda.get_device_name` spells them.

    A slice of one (MIG) ends in `MIG`, for the driver does not say here which slice it is.
    """
    gpus = [_read_gpu(path) for path in sorted(proc.glob("driver/nvidia/gpus/*/information"))]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(gpu.model for gpu in gpus)
    names = []
    for entry in visible.split(","):
        name = _find_visible(entry.strip(), gpus)
        if name is None:
            break  # as CUDA does: what follows an invalid entry is not seen
        names.append(name)
    return tuple(names)


def _read_gpu(path: Path) -> _Gpu:
    pairs = (line.partition(":") for line in read_text(path).splitlines())
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    return _Gpu(facts.get("Model", "unknown GPU"), facts.get("GPU UUID", ""))


def _find_visible(entry: str, gpus: Sequence[_Gpu]) -> str | None:
    """Name the GPU that an entry of CUDA_VISIBLE_DEVICES means: a number, or the beginning of a UUID."""
    if entry.isdecimal():
        return gpus[int(entry)].model if int(entry) < len(gpus) else None
    if entry.startswith("MIG-"):
        return f"{gpus[0].model} MIG" if gpus else None
    return next((gpu.model for gpu in gpus if entry and gpu.uuid.startswith(entry)), None)


def may_have(gpu: str, dev: Path = DEV, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether an accelerator that `read_gpus` does not list may be here all the same.

    NVIDIA's driver lists its GPUs on Linux itself; in WSL, and those of AMD and Intel, have no name that can be read
    without starting them. A process that can use one has its device file, and more is not asked for.
    """
    if any(environ.get(name, "unset").strip() in ("", "-1") for name in VISIBLE_DEVICES):
        return False
    is_amd = re.search(r"\b(AMD|Radeon|Instinct)\b", gpu) is not None
    file = "dri/renderD*" if gpu == "xpu" else "kfd" if is_amd else "dxg"
    return any(dev.glob(file))
