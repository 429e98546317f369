"""Puts the profiles of several tuned files together: one file for all machines of a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from autotune.profiles.compare import compare_results
from autotune.profiles.naming import GENERATED_NAME, is_same_target, make_profile_name
from autotune.profiles.saving import add_to_history
from autotune.profiles.schema import TunedProfile
from autotune.units import format_rate


@dataclass(frozen=True, slots=True)
class Source:
    """A tuned file: what it is called, and what it holds."""

    name: str
    profiles: tuple[TunedProfile, ...]


@dataclass(frozen=True, slots=True)
class Merger:
    """What came of it: the profiles, and a sentence for each that was replaced by another result, or renamed."""

    profiles: tuple[TunedProfile, ...]
    remarks: tuple[str, ...]


def merge_profiles(sources: Sequence[Source]) -> Merger:
    """Put profiles together: of those for equal machines and the same workload the newest, of others all.

    An older result becomes part of the history of the newer one. A name that stands for several machines is told apart
    by what each has.
    """
    found = [(source.name, profile) for source in sources for profile in source.profiles]
    kept: list[tuple[str, TunedProfile]] = []
    remarks: list[str] = []
    for name, profile in sorted(found, key=lambda pair: (pair[1].created_at, _find_last_reading(pair[1]))):
        older = next((pair for pair in kept if _is_replaced(pair[1], profile)), None)
        if older is not None:
            kept.remove(older)
            remarks += _describe_replacement(older, (name, profile))
        kept.append((name, profile if older is None else add_to_history(profile, older[1])))
    profiles: list[TunedProfile] = []
    for name, profile in kept:
        named = _tell_apart(profile, profiles)
        if named.name != profile.name:
            remarks.append(f"{profile.name} of {name} is now {named.name}: another profile has that name")
        profiles.append(named)
    return Merger(tuple(profiles), tuple(remarks))


def _find_last_reading(profile: TunedProfile) -> datetime:
    """Find when a machine last added what it reaches: of copies of one result the one that knows most is the newest."""
    readings = () if profile.nodes is None else profile.nodes.readings
    return max((one.created_at for one in readings), default=profile.created_at)


def _is_replaced(older: TunedProfile, newer: TunedProfile) -> bool:
    """Tell whether a result takes another one's place: names that were given by hand keep results apart."""
    are_generated = all(GENERATED_NAME.fullmatch(one.name) for one in (older, newer))
    return (older.name == newer.name or are_generated) and is_same_target(older, newer)


def _describe_replacement(older: tuple[str, TunedProfile], newer: tuple[str, TunedProfile]) -> list[str]:
    """Say which of two results was taken, and whether they differ beyond noise; nothing where they are one."""
    (before, first), (after, second) = older, newer
    if first.created_at == second.created_at and first.config == second.config:
        return []
    found = compare_results(first, second)
    rates = f"{format_rate(found.rates[0])} in {before}, {format_rate(found.rates[1])} in {after}"
    verdict = "they differ beyond noise" if found.is_beyond_noise else "no difference beyond noise"
    return [f"{second.name}: {rates}, {verdict}; the newer one is taken"]


def _tell_apart(profile: TunedProfile, others: Iterable[TunedProfile]) -> TunedProfile:
    """Give a profile a name that none of the others has."""
    taken = {other.name for other in others}
    machine, _, digest = make_profile_name(profile).rpartition("-")
    names = (profile.name, f"{profile.name}-{machine}", f"{profile.name}-{machine}-{digest}")
    free = next((name for name in names if name not in taken), f"{profile.name}-{len(taken)}")
    return profile.model_copy(update={"name": free})
