"""Which way does a script go by its own defaults? What can be told without running it, and `UNKNOWN` for the rest."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, Final

from autotune.scripts.names import Path, read_path

UNKNOWN: Final = object()
MAX_STEPS: Final = 20  # from a name to what it was made of
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
_CONVERSIONS: Final = {"int": int, "bool": bool, "float": float, "str": str}
_ALONE: Final = {"is_initialized": False, "is_dist_avail_and_initialized": False, "get_world_size": 1, "get_rank": 0}

LookUp = Callable[[Path], ast.expr | None]


def evaluate(node: ast.expr, look_up: LookUp, steps: int = MAX_STEPS) -> Any:
    """Work out what an expression gives in a training of one process; `UNKNOWN` where that cannot be told.

    Args:
        node: The expression.
        look_up: Gives the expression that a name stands for; None where that is not known.
        steps: How many names may be followed.
    """
    if steps == 0:
        return UNKNOWN
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute() | ast.Subscript():
            path = read_path(node)
            found = None if path is None else look_up(path)
            return UNKNOWN if found is None else evaluate(found, look_up, steps - 1)
        case ast.BoolOp(op=op, values=values):
            return _join([evaluate(one, look_up, steps) for one in values], stops=isinstance(op, ast.Or))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            value = evaluate(operand, look_up, steps)
            return UNKNOWN if value is UNKNOWN else not value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compare(op, evaluate(left, look_up, steps), right, look_up, steps)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            value = evaluate(test, look_up, steps)
            return UNKNOWN if value is UNKNOWN else evaluate(body if value else orelse, look_up, steps)
        case ast.Call(func=func, args=args):
            return _call(read_path(func) or ("",), [evaluate(arg, look_up, steps) for arg in args])
    return UNKNOWN


def _join(values: list[Any], *, stops: bool) -> Any:
    """Join by `or`, which stops at what is true, or `and`, which stops at what is not."""
    if any(value is not UNKNOWN and bool(value) is stops for value in values):
        return next(value for value in values if value is not UNKNOWN and bool(value) is stops)
    return UNKNOWN if any(value is UNKNOWN for value in values) else values[-1]


def _compare(op: ast.cmpop, left: Any, right: ast.expr, look_up: LookUp, steps: int) -> Any:
    if isinstance(op, ast.In | ast.NotIn) and read_path(right) == ("os", "environ"):
        return isinstance(op, ast.NotIn)  # what a launcher sets is not there
    other = evaluate(right, look_up, steps)
    if left is UNKNOWN or other is UNKNOWN:
        return UNKNOWN
    try:
        return _COMPARISONS[type(op)](left, other)
    except TypeError:
        return UNKNOWN


def _call(path: Path, values: list[Any]) -> Any:
    if path[-1] in _ALONE and not values:
        return _ALONE[path[-1]]
    if path in (("os", "environ", "get"), ("os", "getenv")) and values:
        return values[1] if len(values) > 1 else None
    if len(path) == 1 and path[0] in _CONVERSIONS and len(values) == 1 and values[0] is not UNKNOWN:
        try:
            return _CONVERSIONS[path[0]](values[0])
        except (TypeError, ValueError):
            return UNKNOWN
    return UNKNOWN
