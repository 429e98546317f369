"""The report as one HTML page that loads nothing. The template escapes all text; a policy allows no other script."""

from __future__ import annotations

import base64
import hashlib
import math
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from autotune.profiles.schema import TunedProfile
from autotune.report.sections import make_report, number
from autotune.settings import describe_config
from autotune.units import format_seconds

MAX_TICKS: Final = 5
_JINJA: Final = Environment(loader=PackageLoader("autotune.report"), autoescape=True, undefined=StrictUndefined)
_JINJA.filters |= {"number": number, "seconds": format_seconds, "config": describe_config}
_JINJA.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def render_html(profile: TunedProfile, file: str, name: str | None = None) -> str:
    """Write the page; `name` selects the profile if the file holds several workloads."""
    result, trials, scaling = profile.result, profile.search.trials, profile.search.scaling
    rates = [point.samples_per_second for point in scaling] + [trial.samples_per_second or 0.0 for trial in trials]
    workers = [one.dataloader.num_workers for one in (profile, *trials)] + [point.num_workers for point in scaling]
    return _JINJA.get_template("report.html").render(
        profile=profile,
        report=make_report(profile, file, name),
        x_ticks=make_ticks(max(MAX_TICKS, *workers)),
        y_ticks=make_ticks(max([result.samples_per_second, *rates, *(result.samples_per_second_ci95 or ())])),
    )


def make_ticks(high: float) -> list[float]:
    """Return at most `MAX_TICKS` + 1 round numbers from 0 to at least `high`."""
    least = max(high, 1e-9) / MAX_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= least * (1 - 1e-9))
    return [step * tick for tick in range(max(1, math.ceil(high / step - 1e-9)) + 1)]
