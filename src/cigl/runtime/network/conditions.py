"""Conditions on the sizes of inputs, under which an exported graph is right: a small language of plain data.

``["==", ["size", 0, 1], 3]`` says that dimension 1 of input 0 is 3. torch.export gives them as Python source; they are
kept as nested lists, so that a file can hold them and nothing is evaluated but arithmetic on whole numbers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Condition = list[Any]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "and": lambda *each: all(each), "or": lambda *each: any(each), "not": operator.not_,
}  # fmt: skip
_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Eq: "==", ast.NotEq: "!=",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.And: "and", ast.Or: "or", ast.Not: "not",
}  # fmt: skip
_TWO = {"+", "-", "*", "//", "%", "==", "!=", "<", "<=", ">", ">="}
_DEEPEST, _LARGEST = 32, 2**63


def holds(condition: Any, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether it is true for inputs of these shapes.

    >>> holds(["==", ["%", ["size", 0, 1], 4], 0], [(2, 8)])
    True
    """
    try:
        return bool(_value(condition, shapes))
    except (IndexError, ZeroDivisionError, OverflowError):
        return False


def _value(expression: Any, shapes: Sequence[Sequence[int]]) -> Any:
    if not isinstance(expression, list):
        return expression
    name, *parts = expression
    if name == "size":
        return shapes[parts[0]][parts[1]]
    found = _FUNCTIONS[name](*(_value(part, shapes) for part in parts))
    if abs(found) >= _LARGEST:
        raise OverflowError  # products of products can be made as large as one likes
    return found


def is_condition(data: Any, depth: int = 0) -> bool:
    """Whether plain data from a file is one."""
    if not isinstance(data, list):
        return type(data) is int and abs(data) < _LARGEST
    if not data or depth > _DEEPEST:
        return False
    name, *parts = data
    if name == "size":
        return len(parts) == 2 and all(type(part) is int and 0 <= part < 64 for part in parts)
    if not isinstance(name, str) or name not in _FUNCTIONS or not parts or len(parts) > 64:
        return False
    wanted = 2 if name in _TWO else 1 if name == "not" else len(parts)
    return len(parts) == wanted and all(is_condition(part, depth + 1) for part in parts)


def from_source(source: str, inputs: Mapping[str, int]) -> Condition | None:
    """From what torch.export writes, by the source of each input; None if it is about anything else.

    >>> from_source("L['x'].size()[1] <= 3", {"L['x']": 0})
    ['<=', ['size', 0, 1], 3]
    """
    try:
        found = _read(ast.parse(source.strip(), mode="eval").body, inputs)
    except (SyntaxError, _Unknown):
        return None
    return found if isinstance(found, list) else None


def as_source(expression: Any, names: Sequence[str]) -> str:
    """For messages.

    >>> as_source(["<=", ["size", 0, 1], 3], ["x"])
    'x.shape[1] <= 3'
    """
    if not isinstance(expression, list):
        return str(expression)
    name, *parts = expression
    if name == "size":
        return f"{names[parts[0]]}.shape[{parts[1]}]"
    written = [as_source(part, names) for part in parts]
    written = [f"({each})" if isinstance(part, list) and part[0] != "size" else each
               for each, part in zip(written, parts, strict=True)]  # fmt: skip
    return f"not {written[0]}" if name == "not" else f" {name} ".join(written)


def _number_last(comparison: Condition) -> Condition:
    """``1 < size`` as ``size > 1``."""
    name, left, right = comparison
    turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(name, name)
    return [turned, right, left] if isinstance(left, int) and not isinstance(right, int) else comparison


class _Unknown(Exception):
    pass


def _read(node: ast.AST, inputs: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Subscript(value=ast.Call(func=ast.Attribute(value=whose, attr="size")), slice=ast.Constant(value=dim)):
            if ast.unparse(whose) in inputs:
                return ["size", inputs[ast.unparse(whose)], dim]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SYMBOLS:
            return [_SYMBOLS[type(op)], _read(left, inputs), _read(right, inputs)]
        case ast.Compare(left=first, ops=ops, comparators=others):
            terms = [_read(each, inputs) for each in (first, *others)]
            pairs = [_number_last([_SYMBOLS[type(op)], terms[n], terms[n + 1]]) for n, op in enumerate(ops)]
            return pairs[0] if len(pairs) == 1 else ["and", *pairs]
        case ast.BoolOp(op=op, values=values):
            return [_SYMBOLS[type(op)], *(_read(each, inputs) for each in values)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ["not", _read(operand, inputs)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return ["-", 0, _read(operand, inputs)]
    raise _Unknown
