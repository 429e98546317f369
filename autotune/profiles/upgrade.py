"""Reads what earlier schemas wrote in the terms of the present one.

A document is not trusted, and may be of any shape: what does not look as it should is left for validation to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autotune.profiles.schema import SCHEMA_ID, SCHEMA_VERSION

Change = Callable[[Any], Any]


def upgrade(document: Any) -> Any:
    """Give parsed JSON of an earlier schema today's names, unknown fields where they were; any other as it is."""
    if not isinstance(document, dict) or document.get("schema_version") != 1:
        return document
    versions = {"$schema": lambda _: SCHEMA_ID, "schema_version": lambda _: SCHEMA_VERSION}
    return _change(document, {}, {**versions, "profiles": _each(_upgrade_profile)})


def _upgrade_profile(profile: Any) -> Any:
    changes = {"result": _upgrade_result, "evidence": _upgrade_evidence, "history": _each(_gather_config)}
    return _change(_gather_config(profile), {"limits": "budgets"}, changes)


def _upgrade_result(result: Any) -> Any:
    changes: dict[str, Change] = {name: _each(_gather_config) for name in ("by_batch_size", "rounds")}
    changes |= {"baseline": _gather_config, "bottleneck": lambda value: "io" if value == "waiting" else value}
    return _change(result, {"contributions": "ablation"}, changes)


def _upgrade_evidence(evidence: Any) -> Any:
    return _change(
        evidence, {"curve": "scaling_curve", "importance": "knob_importance"}, {"trials": _each(_upgrade_trial)}
    )


def _upgrade_trial(trial: Any) -> Any:
    return _change(_gather_config(trial), {"fate": "outcome", "expected": "expected_samples_per_second"}, {})


def _gather_config(value: Any) -> Any:
    """Put `dataloader` and `process`, which stood side by side, into one `config`."""
    if not isinstance(value, dict) or "dataloader" not in value:
        return value
    config = {name: value[name] for name in ("dataloader", "process") if name in value}
    rest = {name: kept for name, kept in value.items() if name != "process"}
    return {("config" if name == "dataloader" else name): rest[name] for name in rest} | {"config": config}


def _change(value: Any, names: Mapping[str, str], changes: Mapping[str, Change]) -> Any:
    """Rename fields of an object, and change what stands in some of them."""
    if not isinstance(value, dict):
        return value
    return {names.get(name, name): changes[name](kept) if name in changes else kept for name, kept in value.items()}


def _each(change: Change) -> Change:
    return lambda values: [change(value) for value in values] if isinstance(values, list) else values
