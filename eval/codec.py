"""Records to JSON and back, for pipes between processes and for the archive.

Comes in: any frozen dataclass of ours. Goes out: plain JSON values. Dataclasses carry their class name under
`"_"`, so a union decodes to the right member; tuples become lists and come back as tuples.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rag_kernels.eval import records

_TYPES: dict[str, type] = {
    name: value for name, value in vars(records).items() if isinstance(value, type) and dataclasses.is_dataclass(value)
}


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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value) if _is_said(f, value)}
        return {"_": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {k: encode(v) for k, v in value.items()}
    return value


def _is_said(field: dataclasses.Field[Any], value: Any) -> bool:
    """Fields marked `later` came after the first archives: where they say nothing, old texts stay as they are."""
    return not field.metadata.get("later") or getattr(value, field.name) != field.default


def decode(value: Any) -> Any:
    """The inverse of `encode`; every list comes back as a tuple, because records hold tuples only."""
    if isinstance(value, list):
        return tuple(decode(v) for v in value)
    if isinstance(value, dict):
        name = value.get("_")
        fields = {k: decode(v) for k, v in value.items() if k != "_"}
        return _TYPES[name](**fields) if name is not None else fields
    return value


def dumps(value: Any) -> str:
    """Encode to a JSON text with sorted keys, so that equal records give equal texts."""
    return json.dumps(encode(value), sort_keys=True)


def loads(text: str) -> Any:
    return decode(json.loads(text))
