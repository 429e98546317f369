"""The report as one HTML page that needs nothing else: no network, no other file, no library.

Everything a tuned file says is untrusted: the template escapes it, and a content security policy lets the page run
its own script, wear its own style, and ask for nothing.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from autotune.profiles.schema import TunedProfile
from autotune.report.ablation_chart import plot_ablation
from autotune.report.axes import PLOT
from autotune.report.summary import (
    collect_parts,
    describe_gain_found,
    describe_what_binds,
    format_number,
    list_settings,
)
from autotune.report.throughput_chart import plot_throughput
from autotune.report.usage import usage_snippet_without_dltune
from autotune.settings import describe_loader, describe_switches
from autotune.units import format_bytes, format_percent, format_rate, format_seconds

_WRITERS = (
    describe_loader,
    describe_switches,
    format_bytes,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
)
_WORDS: Final = {write.__name__: write for write in _WRITERS}  # as the templates call them


def render_html(profile: TunedProfile, file: str) -> str:
    """Write the report as a whole HTML document; `file` is the path by which training code names the tuned file."""
    style, script = _read_part("report.css"), _read_part("report.js")
    settings = list_settings(profile)
    changed = [setting for setting in settings if setting.was is not None]
    return (
        _open_environment()
        .get_template("report.html")
        .render(
            collect_parts(profile, file),
            lead=describe_gain_found(profile),
            bound=describe_what_binds(profile),
            chips=changed or settings,
            as_before=[setting for setting in settings if changed and setting.was is None],
            plain_use=usage_snippet_without_dltune(profile),
            throughput=plot_throughput(profile),
            ablation=plot_ablation(profile),
            style=style,
            script=script,
            policy=_write_policy(style, script),
        )
    )


@cache
def _open_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _WORDS
    environment.globals |= {**_WORDS, "plot": PLOT}
    return environment


def _read_part(name: str) -> str:
    return files("autotune.report").joinpath("templates", name).read_text(encoding="utf-8")


def _write_policy(style: str, script: str) -> str:
    """Write the content security policy: this style, this script, and nothing else from anywhere."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
