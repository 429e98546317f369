"""Lists the fields of a class in its documentation, with the comments behind them: griffe reads docstrings only."""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Docstring, Extension


class FieldComments(Extension):
    """Appends an `Attributes` section to the docstrings of classes that have comments behind their fields."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Read the comments when the members of a class have been read."""
        fields = [one for one in cls.members.values() if isinstance(one, Attribute) and one.lines]
        comments = ((one.name, re.search(r"  # (.+)$", one.lines[-1])) for one in fields)
        listed = [f"    {name}: {comment[1]}" for name, comment in comments if comment is not None]
        if cls.docstring is not None and listed:
            text = "\n".join([cls.docstring.value, "", "Attributes:", *listed])
            cls.docstring = Docstring(text, lineno=cls.docstring.lineno, endlineno=cls.docstring.endlineno, parent=cls)
