"""A profile with hostile text in every field that takes text."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from autotune.profiles.schema import TunedProfile
from tests.builders import make_config, make_failed_summary, make_full_profile, make_request

HOSTILE = "</title></style><script>alert('1')</script><img src=x onerror=\"alert(2)\">{{ 7 * 7 }}&https://evil.example"


def _poison(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _poison(getattr(value, name)) for name in type(value).model_fields})
    if isinstance(value, dict):
        return {HOSTILE: HOSTILE}
    if isinstance(value, tuple):
        return tuple(_poison(part) for part in value)
    return HOSTILE if isinstance(value, str) else value


def make_hostile_profile() -> TunedProfile:
    """Build the profile; fields that take one of a few words keep theirs."""
    good = make_full_profile()
    bad: TunedProfile = _poison(good)
    result = bad.result.model_copy(update={"decision": "faster", "bottleneck": "cpu"})
    trials = (*good.search.trials, make_failed_summary(6, make_config(2), HOSTILE))
    kept_parts = {"trials": trials, "phase_seconds": good.search.phase_seconds, "scaling": good.search.scaling}
    search = bad.search.model_copy(update=kept_parts)
    candidates = zip(result.candidates, good.result.candidates, strict=True)
    kept = tuple(one.model_copy(update={"config": other.config, "runs": other.runs}) for one, other in candidates)
    assert result.baseline is not None
    baseline = result.baseline.model_copy(update={"config": make_config(), "bottleneck": "io"})
    return bad.model_copy(
        update={
            "result": result.model_copy(update={"candidates": kept, "baseline": baseline}),
            "search": search,
            "config": good.config,
            "request": make_request(profile=HOSTILE).record(),
        }
    )
