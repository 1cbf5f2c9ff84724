"""Records to JSON and back, for pipes between processes and for the archive.

Comes in: any frozen dataclass of ours. Goes out: plain JSON values. Dataclasses carry their class name under
`"_"`, so a union decodes to the right member; tuples become lists and come back as tuples. What comes from a process
that is not trusted is read by `decode_as`: there the reader names the class, not the text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rag_kernels.eval import records
from rag_kernels.eval.errors import Internal

T = TypeVar("T")
RECORDS: Mapping[str, type] = MappingProxyType(
    {n: value for n, value in vars(records).items() if isinstance(value, type) and dataclasses.is_dataclass(value)}
)
_TYPES: dict[str, type] = dict(RECORDS)


class Malformed(ValueError, Internal):
    """A value is not of the class that was to be read."""


def register(*types: type) -> None:
    """Let dataclasses of other folders take part. A second class of a name is refused: texts hold the name alone."""
    for new in types:
        known = _TYPES.setdefault(new.__name__, new)
        if known is not new:
            raise TypeError(
                f"{new.__module__}.{new.__qualname__} cannot be a record: {known.__module__}.{known.__qualname__} "
                "has that name already, and a text would decode to either. Give one of them another name."
            )


def encode(value: Any) -> Any:
    """Turn a record (or a nest of records, tuples, dicts and scalars) into JSON values."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if dataclasses.is_dataclass(kind):
        fields = {
            name: encode(getattr(value, name))
            for name, default, later in _fields(kind)
            if not later or getattr(value, name) != default
        }
        return {"_": kind.__name__, **fields}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {k: encode(v) for k, v in value.items()}
    return value


_PLAIN = frozenset({bool, int, float, str, NoneType})


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return names, defaults, and which came after the first archives.

    Where they say nothing, old texts stay as they are.
    """
    return tuple((f.name, f.default, bool(f.metadata.get("later"))) for f in dataclasses.fields(kind))


def decode(value: Any, types: Mapping[str, type] = _TYPES) -> Any:
    """Return the inverse of `encode`; every list comes back as a tuple, because records hold tuples only.

    `types` are the classes that may come up, by name; by default all that are registered.
    """
    if isinstance(value, list):
        return tuple(decode(v, types) for v in value)
    if isinstance(value, dict):
        name = value.get("_")
        fields = {k: decode(v, types) for k, v in value.items() if k != "_"}
        return types[name](**fields) if name is not None else fields
    return value


def decode_as(kind: type[T], value: Any) -> T:
    """Read one dataclass whose fields are exactly these and of their types, all the way down, or raise Malformed."""
    found: T = _read(kind, value)
    return found


def _read(hint: Any, value: Any) -> Any:
    """Return a value of what a type hint says; hints are those that records have."""
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        hints = _hints(kind)
        if type(value) is dict and value.get("_") == kind.__name__ and value.keys() == hints.keys():
            return kind(**{name: _read(part, value[name]) for name, part in hints.items() if name != "_"})
    elif hint in _PLAIN:
        if type(value) is hint or (hint is float and type(value) is int and abs(value) < 1 << 1000):
            return hint(value) if hint is float else value
    elif type(value) in (list, tuple) and get_origin(hint) is tuple:
        parts = get_args(hint)
        parts = parts[:1] * len(value) if parts[-1:] == (Ellipsis,) else parts
        if len(parts) == len(value):
            return tuple(_read(part, v) for part, v in zip(parts, value, strict=True))
    elif type(value) is dict and get_origin(hint) is dict:
        of, to = get_args(hint)
        return {_read(of, k): _read(to, v) for k, v in value.items()}
    elif get_origin(hint) is Literal and type(value) is str and value in get_args(hint):
        return value
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            try:
                return _read(part, value)
            except Malformed:
                continue
    raise Malformed(f"{str(value)[:80]!r} is no {getattr(hint, '__name__', hint)}")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Type hints of a dataclass's fields; under `"_"`, as in a text, its name."""
    hints = get_type_hints(kind)
    return {"_": str} | {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def dumps(value: Any) -> str:
    """Encode to a JSON text with sorted keys, so that equal records give equal texts."""
    return json.dumps(encode(value), sort_keys=True)


def loads(text: str) -> Any:
    return decode(json.loads(text))
