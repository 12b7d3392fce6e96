"""Arithmetic expressions as text, which compute grids, extents and amounts of work from sizes:
"(n + 255) // 256", "cdiv(rows, TILE)", "2 * m * n * k".

Python's parser reads them and a table of operators evaluates them, because `eval` would run any
code in a file's header.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from rawnn.common.errors import ConfigError, RawnnError, nearest

Expression = int | float | str
"""A number, or text that `evaluate` reads."""

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_MOST_POWER = 256  # largest exponent: 2 ** 10 ** 10 would never end


def cdiv(a: int, b: int) -> int:
    """a / b rounded up: the number of blocks of `b` that cover `a`."""
    return -(-a // b)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cdiv": cdiv, "min": min, "max": max, "abs": abs, "ceil": math.ceil, "floor": math.floor,
    "sqrt": math.sqrt, "log2": math.log2, "round": round, "int": int,
}  # fmt: skip


def evaluate(expression: Expression, names: Mapping[str, Any], what: str) -> Any:
    """The value of an expression in terms of `names`; `what` names the expression in errors.

    Supported are + - * / // % ** << >> & |, comparisons, and, or, not, `a if c else b` and
    FUNCTIONS. Raises ConfigError for other syntax and for an unknown name.
    """
    if isinstance(expression, bool | int | float):
        return expression
    if not isinstance(expression, str):
        raise ConfigError(f"{what} = {expression!r}: give a number, or an expression as text such "
                          f"as \"(n + 255) // 256\"")
    try:
        return _value(_parsed(expression, what).body, names, what, expression)
    except (ArithmeticError, ValueError, TypeError) as error:
        known = ", ".join(f"{k} = {v}" for k, v in names.items() if k in expression)
        raise ConfigError(f"{what} = \"{expression}\" has no value"
                          f"{f' for {known}' if known else ''}: {error}") from None


def called(function: Callable[[Any], Any], names: Mapping[str, Any], what: str) -> Any:
    """What a user's function of names returns. Raises ConfigError with its error."""
    try:
        return function(names)
    except RawnnError:
        raise
    except Exception as error:
        raise ConfigError(f"{what}: the function fails with {type(error).__name__}: {error}; it is "
                          f"given a dictionary of {', '.join(names)}") from error


def names_in(expression: Expression, what: str) -> set[str]:
    """The names that an expression uses. Raises ConfigError for invalid text."""
    if not isinstance(expression, str):
        return set()
    tree = _parsed(expression, what)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(FUNCTIONS)


def whole(expression: Expression, names: Mapping[str, Any], what: str, least: int = 1) -> int:
    """Like `evaluate`, for a whole number of at least `least`."""
    value = evaluate(expression, names, what)
    if isinstance(value, bool) or value != int(value) or value < least:
        known = ", ".join(f"{k} = {v}" for k, v in names.items() if k in str(expression))
        raise ConfigError(f"{what} = {expression!r} is {value}{f' for {known}' if known else ''}: "
                          f"it has to be a whole number of at least {least}")
    return int(value)


def _parsed(expression: str, what: str) -> ast.Expression:
    try:
        return ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise ConfigError(f"{what} = \"{expression}\" cannot be read: {error.msg}") from None


def _value(node: ast.expr, names: Mapping[str, Any], what: str, text: str) -> Any:
    def of(inner: ast.expr) -> Any:
        return _value(inner, names, what, text)

    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise ConfigError(f"{what} = \"{text}\" asks for '{node.id}', which is not known"
                              f"{nearest(node.id, names)}" + (
                                  f" (known: {', '.join(names)})" if names else ""))
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = of(node.left), of(node.right)
        if isinstance(node.op, ast.Pow | ast.LShift) and abs(right) > _MOST_POWER:
            raise ValueError(f"{right} is too large an exponent")
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](of(node.operand))
    if isinstance(node, ast.BoolOp):
        every = isinstance(node.op, ast.And)
        value: Any = every
        for part in node.values:
            value = of(part)
            if bool(value) != every:
                return value
        return value
    if isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
        sides = [of(node.left), *map(of, node.comparators)]
        return all(_OPERATORS[type(op)](a, b)
                   for op, a, b in zip(node.ops, sides, sides[1:], strict=False))
    if isinstance(node, ast.IfExp):
        return of(node.body if of(node.test) else node.orelse)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords \
            and node.func.id in FUNCTIONS:
        return FUNCTIONS[node.func.id](*map(of, node.args))
    raise ConfigError(f"{what} = \"{text}\": '{ast.unparse(node)}' is not understood; numbers, "
                      f"names, + - * / // % **, comparisons and {', '.join(FUNCTIONS)} are")
