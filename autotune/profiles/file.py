"""Reads dltune.json: whole and valid, or not at all.

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
from pydantic_core import from_json

from autotune.errors import ProfileError
from autotune.profiles.schema import SCHEMA_VERSION, TunedFile, TunedProfile
from autotune.units import format_bytes

MAX_BYTES: Final = 16 * 2**20  # of a tuned file; a profile is 4 KiB
MAX_NAMED: Final = 10  # unknown fields in a warning
LOAD_STACKLEVEL: Final = 7  # from the warning up to the line that called `autotune.load`


def read_file(path: Path) -> TunedFile:
    """Read and validate a tuned file; fields that this version does not know are ignored with a warning.

    Raises:
        ProfileError: It cannot be read, is no file or too large for one of ours, is not JSON, is of a newer schema
            version, or is not valid.
    """
    return parse(read_bytes(path), path)


def read_profiles_or_empty(path: Path) -> tuple[TunedProfile, ...]:
    """Read the profiles of a file that may not be there, or not be ours; there are none in it then."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read_file(path).profiles
    except ProfileError:
        return ()


def read_bytes(path: Path) -> bytes:
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


def parse(text: bytes, path: Path) -> TunedFile:
    """Validate the text of a tuned file, of this version or of an earlier one; raises as `read_file` does."""
    try:
        return TunedFile.model_validate_json(text)
    except ValidationError as error:
        found = error
    from autotune.profiles.upgrade import upgrade  # most files need none

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
