"""Reads and writes dltune.json: whole, valid, and never at the cost of what others have written into it.

What is read is not trusted. It is parsed, never run: nothing that a field names is imported, opened or unpickled here.
Checking a profile against its workload and retuning it do import what it names; `trust` says which files may be.
"""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from autotune.errors import OutputError, ProfileError
from autotune.profiles.atomic_write import write_atomically
from autotune.profiles.schema import SCHEMA_VERSION, PastResult, TunedFile, TunedProfile
from autotune.profiles.upgrade import upgrade
from autotune.units import format_bytes

LOCK_SECONDS: Final = 30.0
MAX_HISTORY: Final = 20  # earlier results of a profile that are kept
MAX_BYTES: Final = 16 * 2**20  # of a tuned file; a profile is 4 KiB
MAX_NAMED: Final = 10  # unknown fields in a warning
LOAD_STACKLEVEL: Final = 7  # from the warning up to the line that called `autotune.load`


def read_file(path: Path) -> TunedFile:
    """Read and validate a tuned file; fields that this version does not know are ignored with a warning.

    Raises:
        ProfileError: It cannot be read, is no file or too large for one of ours, is not JSON, is of a newer schema
            version, or is not valid.
    """
    return _parse(_read_bytes(path), path)


def read_profiles_or_empty(path: Path) -> tuple[TunedProfile, ...]:
    """Read the profiles of a file that may not be there, or not be ours; there are none in it then."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read_file(path).profiles
    except ProfileError:
        return ()


def _read_bytes(path: Path) -> bytes:
    """Read a regular file of a size that can be ours: a pipe may never end, and a device never does."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as stream:  # Path.open takes no opener
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ProfileError(f"{path} is not a regular file.")
            if status.st_size > MAX_BYTES:
                size, most = format_bytes(status.st_size), format_bytes(MAX_BYTES)
                raise ProfileError(f"{path} holds {size}; a tuned file holds {most} at most.")
            return stream.read(MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _parse(text: bytes, path: Path) -> TunedFile:
    try:
        return TunedFile.model_validate_json(text)
    except ValidationError as error:
        found = error
    document = _read_document(text)
    upgraded = upgrade(document)
    if upgraded is not document:
        try:
            return TunedFile.model_validate(upgraded)
        except ValidationError as error:
            found = error
    return _read_ignoring_unknown(found, upgraded, path)


def _read_document(text: bytes) -> dict[str, Any] | None:
    """Parse what lies in a file; None where it is no JSON object."""
    try:
        document = from_json(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _read_ignoring_unknown(error: ValidationError, document: dict[str, Any] | None, path: Path) -> TunedFile:
    """Read a file again without the fields that are unknown, when nothing else is wrong with it."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    version = document.get("schema_version") if document is not None else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ProfileError(
            f"{path} was written by a newer dltune (schema {version}; this one reads {SCHEMA_VERSION}). Update dltune, "
            "or use another file."
        ) from None
    extra = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
    unknown = list(dict.fromkeys(extra))  # a key may stand there twice
    if not extra or len(extra) < len(problems):
        raise ProfileError(f"{path} is not a tuned file of schema {SCHEMA_VERSION}: {_summarize(problems)}") from None
    for place in unknown:
        _delete_path(document, place)
    try:
        found = TunedFile.model_validate(document)
    except ValidationError as other:
        raise ProfileError(f"{path} is not a tuned file: {_summarize(other.errors(include_url=False))}") from None
    names = ", ".join(_join(place) for place in unknown[:MAX_NAMED])
    more = f" and {len(unknown) - MAX_NAMED} more" if len(unknown) > MAX_NAMED else ""
    warnings.warn(f"{path}: ignored unknown fields {names}{more}", stacklevel=LOAD_STACKLEVEL)
    return found


def _delete_path(document: Any, place: tuple[int | str, ...]) -> None:
    for step in place[:-1]:
        document = document[step]
    del document[place[-1]]


def _join(place: tuple[int | str, ...]) -> str:
    return ".".join(str(step) for step in place) or "the whole"


def _summarize(problems: list[Any]) -> str:
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{_join(first['loc'])}: {first['msg']}{more}."


def save_profile(path: Path, profile: TunedProfile, lock_seconds: float = LOCK_SECONDS) -> None:
    """Write a profile into a tuned file, keeping all else in it, and what a newer dltune wrote there as it stands.

    It replaces the profile of the same name, whose result becomes part of its history. The file is written beside and
    renamed, under a lock, so that nobody ever reads half of it, and that of two who write at once neither loses a
    profile.

    Raises:
        ProfileError: What lies at the path is not a tuned file; it is left as it is.
        OutputError: The file cannot be written, or is locked by another process for longer than `lock_seconds`.
    """
    from autotune.system.locks import LockedError, hold  # training code only reads files, and needs no filelock

    _check_folder(path)
    real = Path(os.path.realpath(path))  # a link stays a link, and all its names share one lock
    try:
        with hold(real.with_name(f".{real.name}.lock"), lock_seconds):
            text = _insert(profile, path) if path.exists() else format_profile(profile)
            _refuse_what_could_not_be_read(path, text)
            write_atomically(real, text)
    except LockedError as error:
        who = f"process {error.holder}" if error.holder else "another process"
        raise OutputError(f"{path} has been locked by {who} for {lock_seconds:g} s.") from None
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}.") from None


def _insert(profile: TunedProfile, path: Path) -> str:
    """Give the text of a file with a profile put into it; the rest of its JSON stays, known or not."""
    text = _read_bytes(path)
    known = {other.name: other for other in _parse(text, path).profiles}
    document = upgrade(from_json(text))
    others = [other for other in document.get("profiles", ()) if other["name"] != profile.name]
    replaced = [other for other in document.get("profiles", ()) if other["name"] == profile.name]
    written = profile.model_dump(mode="json")
    if replaced:
        past = _summarize_past(known[profile.name]).model_dump(mode="json")
        written["history"] = [*replaced[0].get("history", ()), past][-MAX_HISTORY:]
    document = {**document, "profiles": [*others, written]}
    return to_json(document, indent=2, inf_nan_mode="constants").decode() + "\n"


def _summarize_past(before: TunedProfile) -> PastResult:
    return PastResult(
        created_at=before.created_at,
        config=before.config,
        samples_per_second=before.result.samples_per_second,
        torch=before.software.torch,
    )


def _refuse_what_could_not_be_read(path: Path, text: str) -> None:
    if len(text.encode()) > MAX_BYTES:
        raise OutputError(
            f"{path} would hold more than {format_bytes(MAX_BYTES)}, which is not read. Give another --output."
        )


def check_writable(path: Path) -> None:
    """Refuse an output path that cannot be written, before minutes are spent on it.

    Raises:
        OutputError: Its folder is missing or cannot be written, or the path is a folder.
        ProfileError: Something else than a tuned file lies there.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder; give a file with --output.")
    _check_folder(path)
    if path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_file(path)


def _check_folder(path: Path) -> None:
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {folder}.")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: the folder {folder} is read-only.")


def format_file(file: TunedFile) -> str:
    """Write a tuned file as indented JSON."""
    return file.model_dump_json(indent=2, by_alias=True) + "\n"


def format_profile(profile: TunedProfile) -> str:
    """Write a tuned file that holds one profile as indented JSON."""
    return format_file(TunedFile(schema_version=SCHEMA_VERSION, profiles=(profile,)))
