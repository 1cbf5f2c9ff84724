"""What a forward may read beside its tensors, as it stood when the kernel was found to be right for it.

Comes in: a module. Goes out: which value is another one now. Held are attributes of the module and of its parts, which
parts there are and their hooks, attributes and functions of their classes, and what these name among the globals. Not
told of are values within objects that have no attributes in Python. Knows nothing of kernels.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from rag_kernels.export.serving.guard import Lines
from rag_kernels.export.serving.results import OF_MODULES
from rag_kernels.export.serving.served import NONE, Reason, attrgetter_of, state_at

WATCHED = ("_modules", "_forward_hooks", "_forward_pre_hooks")
TENSORS = ("_parameters", "_buffers")
METHODS = (staticmethod, classmethod, property, functools.cached_property, functools.partialmethod)
CACHED = functools._lru_cache_wrapper
CALLED = (types.FunctionType, types.BuiltinFunctionType, functools.partial, CACHED, *METHODS)
FIXED = (Enum, type, nn.Module, types.ModuleType, *CALLED)
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
MOST_ASKED = 8  # times that a check is made anew by the versions of attributes, which are set again and again
MANY_TIMES = 32
VALUES = (*PLAIN, list, tuple, dict, set, frozenset)  # of constants
Values = dict[str, Any]


class Object:
    """An object as it was, equal to one with the same attributes. `place` are its attributes as they are now."""

    def __init__(self, value: Any) -> None:
        self.value, self.place = value, vars(value)
        self.kind, self.told, self.fields = type(value), repr(value), {k: frozen(v) for k, v in vars(value).items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "place": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, place=vars(state["value"]))

    def __eq__(self, other: object) -> bool:
        return type(other) is self.kind and vars(other) == self.fields

    def __repr__(self) -> str:
        return self.told

    __hash__ = None  # type: ignore[assignment]


class Untouched:
    """A tensor that the kernel is not given: equal to itself while nothing was written to it."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value, self.version = value, value._version

    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return self.value, self.value._version == self.version  # a copy counts its versions anew

    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.value, untouched = state
        self.version = self.value._version if untouched else -1

    def __eq__(self, other: object) -> bool:
        return other is self.value and self.value._version == self.version

    def __repr__(self) -> str:
        return "another tensor, or of other content"

    __hash__ = None  # type: ignore[assignment]


class Cached:
    """A function with a cache, equal to itself; `function` is the one within."""

    def __init__(self, value: Any) -> None:
        self.value, self.function = value, value.__wrapped__

    def __eq__(self, other: object) -> bool:
        return other is self.value

    def __repr__(self) -> str:
        return repr(self.value)

    __hash__ = None  # type: ignore[assignment]


BOUND = (*PLAIN, *FIXED, Cached)  # values that are others only where another one is set


@functools.cache
def version_of_dicts() -> Callable[[dict[str, Any]], int] | None:
    """Return what tells a dictionary's version, which is another one once anything in it was set.

    torch.compile asks it. It is not promised to stay: None where it is not there, or misses what has to be told.
    """
    try:
        from torch._C._dynamo import guards

        torchs: Any = guards
        version: Callable[[dict[str, Any]], int] = torchs.dict_version
        part: Any = nn.Module()
        place, seen = vars(part), []
        for number in range(1, MANY_TIMES + 1):  # which Python gets quicker at
            part.number = number
            seen += [version(place), version(place["_parameters"])]
            place["number"] = -number
            seen.append(version(place))
            part.weight = nn.Parameter(torch.zeros(1))
            seen += [version(place["_parameters"]), version(place)]
            del part.number
        kept = version(place), version(place["_parameters"])
    except Exception:  # whatever another version raises
        return None
    told = [seen[0::5], seen[1::5], seen[2::5], seen[3::5]]
    apart = all(len(set(one)) == MANY_TIMES for one in told) and seen[2::5] == seen[4::5]
    return version if apart and not set(seen[0::5]) & set(seen[2::5]) and kept == (version(place), seen[-2]) else None


class Held:
    """Values of a module by the path of its part, and of classes and globals by their names; can be copied."""

    def __init__(self, module: nn.Module, given: Sequence[str], skipped: frozenset[str] = frozenset()) -> None:
        """Take paths: `given` are those of the tensors that the kernel is given.

        `skipped` attributes of the module itself.
        """
        self.skipped = skipped
        arguments = {id(attrgetter_of(path)(module)) for path in given}
        kinds = [kind for part in module.modules() for kind in type(part).__mro__]
        self.names = names_read(kinds)
        self.parts = {path: self._of(part, path, arguments) for path, part in module.named_modules()}
        self.keys = {path: vars(part).keys() - self._skips(path) for path, part in module.named_modules()}
        self.tied = [pair for pair in _tied(module) if pair[1] in given]

    def _of(self, part: nn.Module, path: str, arguments: set[int]) -> Values:
        values = vars(part)
        own = {
            name: value for name, value in values.items() if name not in OF_MODULES and name not in self._skips(path)
        }
        kept = {name: value for name, value in own.items() if not _given(value, arguments)}
        if "training" in self.names:
            kept["training"] = part.training
        watched = WATCHED if path else WATCHED[:1]  # the module's own hooks are run around its forward
        return {name: frozen(value) for name, value in kept.items()} | {name: dict(values[name]) for name in watched}

    def _skips(self, path: str) -> frozenset[str]:
        return frozenset() if path else self.skipped

    def added(self, attributes: Mapping[str, Any], path: str) -> str:
        """Return the first attribute of a part that it did not have and that is read, by its path; "" for none."""
        for name in attributes:
            known = name in self.keys[path] or (not path and name in self.skipped)
            if not known and (name in self.names or name == "forward"):
                return _dotted(path, name)
        return ""

    def looks(self, module: nn.Module) -> Looks:
        """Return the look at this module that each call takes."""
        return Looks(self, module)


class Attributes:
    """The attributes of each part of a module, by its path: of a `__dict__` itself PyTorch 2.11 compiles no loop.

    Within an object of their own, where torch.export does not look for tensors: they hold each other.
    """

    def __init__(self, module: nn.Module) -> None:
        self.of = {path: vars(part) for path, part in module.named_modules()}


class Looks:
    """One look at every place where a value may have changed, in a microsecond or a few."""

    def __init__(self, held: Held, module: nn.Module) -> None:
        self.held, self.module = held, module
        self.versions: list[tuple[Any, int]] = []
        self.asked = 0  # how often versions were
        self.entries: list[tuple[Mapping[str, Any], str, Any, tuple[Any, ...], tuple[str, ...]]] = []
        self.counts: list[tuple[Any, str, int]] = []
        parts = dict(module.named_modules())
        self.lost = next((path for path in held.parts if path not in parts), "")
        for path, values in held.parts.items():
            if path in parts:
                self._add(vars(parts[path]), path, values)
                skipped = len(held._skips(path) & vars(parts[path]).keys())
                self.counts.append((vars(parts[path]), path, len(held.keys[path]) + skipped))
        self.tied = [(attrgetter_of(one), attrgetter_of(other), one) for one, other in held.tied]

    def _add(self, place: Mapping[str, Any], path: str, values: Values) -> None:
        if values:
            names = tuple(values)
            self.entries.append(
                (place, path, itemgetter(*names, names[0]), (*values.values(), values[names[0]]), names)
            )

    def outside(self, places: Sequence[tuple[Mapping[str, Any], str, Values]]) -> Looks:
        """Return also look at classes and globals; returns itself."""
        for place, told, values in places:
            self._add(place, told, values)
        return self

    def guarded(self, lines: Lines) -> None:
        """Add what `changed` asks, of a module of which nothing has changed.

        Of the attributes of a part the version is asked, where dictionaries have one, and of them all that may change
        within. Those of the module itself change at each call, which is counted there.
        """
        self.versions = self._versions()
        for place, version in self.versions:
            lines.refuse(f"{lines.name(version_of_dicts())}({lines.name(place)}) != {lines.name(version)}")
        whole = {id(place) for place, _ in self.versions}
        lines.whole = whole
        for place, _, _, before, names in self.entries:
            at = lines.name(place)
            for name, value in zip(names, before, strict=False):
                if id(place) in whole and (name in WATCHED or isinstance(value, BOUND)):
                    if id(place[name]) not in whole and name in WATCHED:
                        lines.refuse(
                            f"{lines.name(place[name])} != {lines.name(value)}" if value else lines.name(place[name])
                        )
                elif isinstance(value, Untouched):
                    tensor = lines.name(value.value)
                    lines.refuse(f"{at}[{name!r}] is not {tensor} or {tensor}._version != {value.version}")
                elif name in WATCHED and not value:
                    lines.refuse(f"{at}[{name!r}]")
                else:
                    lines.unlike(f"{at}[{name!r}]", value)
        for attributes in [attributes for attributes, _, _ in self.counts if id(attributes) not in whole]:
            lines.refuse(f"{lines.len}({lines.name(attributes)}) != {len(attributes)}")
        for one, other in self.held.tied:
            lines.refuse(f"{read(lines, self.module, one)} is not {read(lines, self.module, other)}")

    def _versions(self) -> list[tuple[Any, int]]:
        """Return the attributes of parts, and the parts that these have, with the versions that they have now.

        None where something has changed meanwhile, or changes again and again.
        """
        version = version_of_dicts()
        if version is None or self.asked >= MOST_ASKED:
            return []
        self.asked += 1
        places = [place for place, path, _ in self.counts if path]
        places += [part for place in places if type(part := place["_modules"]) is dict and part]
        found = [(place, version(place)) for place in places]
        return [] if self.changed().text else found

    def moved(self) -> bool:
        """Return whether attributes were set since `guarded`, perhaps to what they were."""
        version = version_of_dicts()
        return version is not None and any(version(place) != before for place, before in self.versions)

    def changed(self) -> Reason:
        """Return the first value that is another one now."""
        if self.lost:
            return Reason(self.lost, f"{self.lost} is no longer part of the module.")
        for place, path, get, before, names in self.entries:
            try:
                if get(place) != before:
                    return _told(place, path, names, before)
            except KeyError as error:
                return Reason(f"{path}{error}", f"{_dotted(path, str(error.args[0]))} was removed.")
            except (ValueError, RuntimeError, TypeError) as error:
                return Reason(path, f"an attribute of {path or 'the module'} cannot be compared ({error}).")
        for attributes, path, count in self.counts:
            if len(attributes) != count and (name := self.held.added(attributes, path)):
                return Reason(name, f"{name} was set after the module was constructed.")
        for one, other, path in self.tied:
            if one(self.module) is not other(self.module):
                return Reason(path, f"{path} is no longer the same tensor as another one.")
        return NONE


def read(lines: Lines, module: nn.Module, path: str) -> str:
    """Return how a tensor of a module is read, without asking the module for it where it need not be."""
    parent, _, name = path.rpartition(".")
    part = state_at(module, parent) if parent else module
    places = [vars(part), *(vars(part)[kind] for kind in TENSORS)] if isinstance(part, nn.Module) else []
    for kind, place in zip(("", *TENSORS), places, strict=False):
        if name in place and place[name] is state_at(module, path):
            if kind and id(vars(part)) not in lines.whole:
                lines.refuse(f"{lines.name(vars(part))}[{kind!r}] is not {lines.name(place)}")
            return f"{lines.name(place)}[{name!r}]"
    return f"{lines.name(attrgetter_of(path))}({lines.name(module)})"


def outside(kinds: Sequence[type], replaced: type | None = None) -> list[tuple[Mapping[str, Any], str, Values]]:
    """Return plain values of these modules' classes, and of globals that their functions name.

    And the functions themselves where a module is `replaced` whose forward is not run.
    """
    places: list[tuple[Mapping[str, Any], str, Values]] = []
    own = [kind for kind in dict.fromkeys(base for kind in kinds for base in kind.__mro__) if not _library(kind)]
    names = names_read(own)
    for kind in own:
        values = {name: v for name, v in vars(kind).items() if name in names and _constant(v)}
        if replaced is not None:
            values |= {name: v for name, v in vars(kind).items() if _function(v) and name != "__init__"}
        places.append((vars(kind), kind.__name__, {name: frozen(v) for name, v in values.items()}))
    for space in {id(space): space for kind in own for space in _globals(kind)}.values():
        values = {name: v for name, v in space.items() if name in names and _constant(v)}
        if replaced is not None:
            values |= {name: v for name, v in space.items() if name in names and _function(v)}
        places.append((space, "", {name: frozen(v) for name, v in values.items()}))
    return places


@functools.cache
def _names_of(kind: type) -> frozenset[str]:
    return frozenset(name for function in _functions(vars(kind).values()) for name in _code_names(function.__code__))


def names_read(kinds: Sequence[type]) -> frozenset[str]:
    """Return every name that the functions of these classes, and of the files of those, may read."""
    kinds = [kind for kind in dict.fromkeys(kinds) if kind not in (nn.Module, object)]
    spaces = {id(space): space for kind in kinds if not _library(kind) for space in _globals(kind)}
    free = {name for space in spaces.values() for f in _functions(space.values()) for name in _code_names(f.__code__)}
    return frozenset(free).union(*(_names_of(kind) for kind in kinds))


def _library(kind: type) -> bool:
    return kind is object or kind.__module__.startswith(("torch.", "rag_kernels.", f"{__package__}."))


def _globals(kind: type) -> Iterator[dict[str, Any]]:
    return (function.__globals__ for function in _functions(vars(kind).values()))


def _functions(values: Any) -> Iterator[types.FunctionType]:
    for value in values:
        function = unwrapped(value)
        if isinstance(function, types.FunctionType) and function.__name__ not in ("get_inputs", "get_init_inputs"):
            yield function


def _code_names(code: types.CodeType) -> Iterator[str]:
    """Yield names and strings (`getattr(self, "eps")`) of a function and of those within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def unwrapped(value: Any) -> Any:
    """Return the function within a method of a class, a property or a cache; anything else as it is."""
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property | functools.partialmethod):
        return value.func
    return value.__wrapped__ if isinstance(value, CACHED) else value


def _function(value: Any) -> bool:
    return any(_functions([value]))


def _constant(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_constant, value))
    return all(map(_constant, value.values())) if isinstance(value, dict) else isinstance(value, PLAIN)


def _given(value: Any, arguments: set[int]) -> bool:
    """Return whether the kernel is given it at each call: a tensor, or tensors in a list."""
    items = value if isinstance(value, list | tuple) else [value]
    return any(id(item) in arguments for item in items)


def frozen(value: Any) -> Any:
    """Return what is equal to the value as long as nothing within it changes."""
    if isinstance(value, CACHED):
        return Cached(value)
    if isinstance(value, (*PLAIN, *FIXED)):
        return value
    if isinstance(value, torch.Tensor):
        return Untouched(value)
    if type(value) in (list, tuple):
        return type(value)(map(frozen, value))
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, set):
        return set(value)
    return Object(value) if hasattr(value, "__dict__") else value


def _tied(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the paths of a tensor's other names, each with its first."""
    first: dict[int, str] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for path, tensor in named:
        known = first.setdefault(id(tensor), path)
        if known != path:
            yield path, known


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _told(place: Mapping[str, Any], path: str, names: Sequence[str], before: Sequence[Any]) -> Reason:
    for name, value in zip(names, before, strict=False):
        now = place[name]
        if now is value or now == value:
            continue
        told = _dotted(path, name.lstrip("_") if name in WATCHED else name)
        if name in WATCHED:
            return Reason(told, f"{told} changed after construction.")
        return Reason(told, f"{told} is {now!r}, and was {value!r} when the module was constructed.")
    return Reason(path, "an attribute changed.")
