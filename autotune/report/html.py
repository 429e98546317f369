"""The report as one HTML page that loads nothing: no network, no other file, no library.

Text from a file is escaped by the template, and a content security policy allows only the page's own style and script.
"""

from __future__ import annotations

import base64
import hashlib
import math

from jinja2 import Environment, PackageLoader, StrictUndefined

from autotune.profiles.schema import TunedProfile
from autotune.report.sections import make_report, number
from autotune.settings import describe_config
from autotune.units import format_seconds

MAX_TICKS = 5
MAX_BOUND_RATIO = 1.3  # to the fastest; an upper bound above it would flatten the chart


def render_html(profile: TunedProfile, file: str, name: str | None = None) -> str:
    """Write the page; `name` selects the profile if the file holds several workloads."""
    environment = Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"sha256": _hash, "number": number, "seconds": format_seconds, "config": describe_config}
    result, scaling = profile.result, profile.search.scaling
    shown = [one.samples_per_second or 0.0 for one in (result, *profile.search.trials, *scaling)]
    highest = max(*shown, *(result.samples_per_second_ci95 or ()))
    bound = result.upper_bound_samples_per_second or 0.0
    bound = bound if bound <= MAX_BOUND_RATIO * highest else 0.0
    workers = [one.dataloader.num_workers for one in (profile, *profile.search.trials)]
    return environment.get_template("report.html").render(
        profile=profile,
        report=make_report(profile, file, name),
        bound=bound,
        x_ticks=make_ticks(max(MAX_TICKS, *workers, *(point.num_workers for point in scaling))),
        y_ticks=make_ticks(max(highest, bound)),
    )


def make_ticks(high: float) -> list[float]:
    """Return round numbers from 0 to at least `high`."""
    least = max(high, 1e-9) / MAX_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= least * (1 - 1e-9))
    return [step * tick for tick in range(max(1, math.ceil(high / step - 1e-9)) + 1)]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
