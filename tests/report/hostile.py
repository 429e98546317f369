"""A profile that is hostile in every text."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from autotune.profiles.schema import TunedProfile
from tests.builders import (
    make_config,
    make_evidence,
    make_failed_line,
    make_full_profile,
    make_request,
    make_trial_line,
)

HOSTILE = "</title></style><script>alert('1')</script><img src=x onerror=\"alert(2)\">{{ 7 * 7 }}&"


def poison(value: Any) -> Any:
    """Put a hostile text into every field that takes one."""
    if isinstance(value, BaseModel):
        names = type(value).model_fields
        return value.model_copy(update={name: poison(getattr(value, name)) for name in names})
    if isinstance(value, dict):
        return {HOSTILE: HOSTILE}
    if isinstance(value, tuple):
        return tuple(poison(part) for part in value)
    return HOSTILE if isinstance(value, str) else value


def make_hostile_profile() -> TunedProfile:
    """Build a profile that is hostile in every text, but for those that only take a few words."""
    trials = (make_trial_line(), make_failed_line(2, make_config(2), HOSTILE))
    evidence = make_evidence(trials=trials, knob_importance={HOSTILE: 1.0})
    good = make_full_profile()
    bad: TunedProfile = poison(good)
    return bad.model_copy(
        update={
            "evidence": evidence,
            "result": bad.result.model_copy(update={"verdict": "faster", "bottleneck": "cpu"}),
            "config": good.config,
            "request": make_request(profile=HOSTILE, study_name=HOSTILE).record(),
        }
    )
