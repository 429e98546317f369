"""How busy is the device, before and after?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.settings import describe_config
from benchmarks.analysis.verdicts import format_rows, format_share
from benchmarks.records import WorkloadResult


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """How busy the device was."""

    workload: str
    label: str  # whose configuration it is
    config: str
    samples_per_second: float  # median of its whole runs
    busy_share: float  # of the time: it did not wait for data, by events
    utilization: float | None  # moments in which it computed anything, by NVML


def list_uses(result: WorkloadResult) -> list[DeviceUse]:
    """Tell how busy the device was at PyTorch's defaults, at a hand setting and at dltune's choice."""
    found = ((label, result.find_entrant(label)) for label in ("defaults", "hand", "dltune"))
    return [
        DeviceUse(
            workload=result.workload,
            label=label,
            config=describe_config(entrant.config),
            samples_per_second=statistics.median(entrant.rates),
            busy_share=entrant.busy_share,
            utilization=entrant.utilization,
        )
        for label, entrant in found
        if entrant is not None and result.device is not None
    ]


def tabulate_uses(uses: Sequence[DeviceUse]) -> str:
    """Lay them out, one a row, each with its gain over PyTorch's defaults."""
    defaults = {use.workload: use.samples_per_second for use in uses if use.label == "defaults"}
    return format_rows(
        {
            "workload": use.workload,
            "who": use.label,
            "configuration": use.config,
            "samples/s": f"{use.samples_per_second:,.0f}",
            "gain": f"{use.samples_per_second / defaults[use.workload]:.2f}x" if use.workload in defaults else "-",
            "busy by events": format_share(use.busy_share),
            "by NVML": format_share(use.utilization),
        }
        for use in uses
    )
