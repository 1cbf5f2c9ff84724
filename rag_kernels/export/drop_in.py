"""A module whose forward is a kernel where that was verified, and the module's own everywhere else.

Comes in: a module as it was constructed, and the calls that it gets. Goes out: the kernel's result, or the module's
with one warning that names which value differs from what was verified. Files written by `--out best.py` import it.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rag_kernels.export.runtime import CompiledForward
from rag_kernels.export.serving.built import MachineError
from rag_kernels.export.serving.changed import returned, state_of, targets, written_to
from rag_kernels.export.serving.guard import Lines
from rag_kernels.export.serving.held import (
    PLAIN,
    VALUES,
    WATCHED,
    Attributes,
    Cached,
    Held,
    Looks,
    Object,
    frozen,
    outside,
    read,
    unwrapped,
)
from rag_kernels.export.serving.inputs import (
    Arranged,
    Input,
    arranged_in,
    guarded_inputs,
    inputs_of,
    leaves_given,
    leaves_traced,
    nested,
)
from rag_kernels.export.serving.results import Results, other_results, results_in, results_of
from rag_kernels.export.serving.served import NONE, Reason, state_at

Guard = Callable[..., tuple[list[Any], Any] | None]
LEAVES = frozenset({torch.Tensor, nn.Parameter, int, float, bool, type(None)})
OWN = frozenset(
    {
        "kernel_used",
        "kernel_reason",
        "kernel_calls",
        "kernel_fallbacks",
        "_refused",
        "_held",
        "_places",
        "_looks",
        "_guard",
        "_results",
        "_arranged",
        "_changes",
    }
)


class KernelNotUsed(UserWarning):
    """A call did not take the kernel; the message says why. Given once for a module and a value that differs."""


class Fallback(NamedTuple):
    """Calls that did not take the kernel, and why the last of them did not."""

    calls: int
    reason: str


class DropIn(nn.Module):
    """The first base of a `ModelNew`; the second is the module that it replaces.

    `kernel_used` says whether the last call took the kernel, and `kernel_reason` why not; `kernel_calls` counts those
    that took it, and `kernel_fallbacks` the others, by what differed. Calls within torch.compile are not counted.
    """

    COMPILED: ClassVar[CompiledForward]
    VERIFIED: ClassVar[Callable[[], Sequence[Any]]]  # the problem's `get_init_inputs`
    OUTSIDE: ClassVar[list[Any]]
    INPUTS: ClassVar[tuple[Input, ...]]
    RESULTS: ClassVar[Results | None] = None  # how the module arranges its results, where that is known
    GIVEN: ClassVar[Arranged] = None  # how the verified call arranges its inputs, where that is known
    MADE_OF: ClassVar[type[nn.Module] | None] = None  # the class of the module that `with_kernel` was given

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "COMPILED" in vars(cls):
            cls.OUTSIDE = outside([cls, *_siblings(_original(cls))], _original(cls))
            cls.INPUTS = inputs_of(_original(cls).forward)
            cls.forward = _with_signature(DropIn.forward, _original(cls).forward)  # type: ignore[method-assign]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        verified = type(self).VERIFIED()
        self._start(_other_arguments(_original(type(self)).__init__, verified, args, kwargs, self))

    def _start(self, refused: Reason) -> None:
        """Hold what the module is now, for which the kernel is right unless it is refused."""
        self.kernel_used: bool | None = None
        self.kernel_reason = ""
        self.kernel_calls = 0
        self.kernel_fallbacks: dict[str, Fallback] = {}
        self._refused = refused
        self._held: Held | None = None
        self._places: Attributes | None = None
        self._looks: Looks | None = None
        self._guard: Guard | None = None
        self._results: Results | None = None
        self._arranged: Callable[[Any], Any] | None = None  # where a kernel's results are not what the module returns
        self._changes: tuple[tuple[int, str], ...] = ()  # results that the module has in tensors that it changes
        if not refused.text:
            self._refused = self._hold()
            self._known_results()

    def _hold(self) -> Reason:
        try:
            self._held = Held(self, [*self.COMPILED.state_paths, *state_of(self.COMPILED.not_written)], OWN)
        except Exception as error:  # whatever the attributes of a module raise when they are read or compared
            return Reason("module", f"its attributes cannot be held ({error}).")
        self._places = Attributes(self)
        return NONE

    def _known_results(self) -> None:
        """Keep how inputs and results are arranged, by the problem's own inputs: compilers record calls unseen.

        Where these cannot be had without data, the first call tells how results are.
        """
        kind = type(self)
        drawn = _globals_of(self).get("get_inputs")
        if kind.RESULTS is None and drawn is not None:
            try:
                with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                    given = drawn()[self.COMPILED.pulled :]
                    kind.GIVEN = arranged_in(_original(kind).forward, self, given, {})
                    kind.RESULTS = results_in(mode, super().forward, given, {})
            except Exception:  # whatever a problem raises without data
                return
        if kind.RESULTS is not None:
            self._refused = self._keep(kind.RESULTS)

    def _keep(self, found: Results) -> Reason:
        """Keep how results are arranged; return why the kernel's cannot be."""
        compiled = self.COMPILED
        changes, lacking = returned(found, compiled.not_written)
        told = other_results(found, len(compiled.outputs) - compiled.hidden, moves=bool(compiled.served.free))
        if told or lacking:
            return Reason("results", told or lacking)
        self.__dict__["_results"], self.__dict__["_changes"] = found, changes
        self.__dict__["_arranged"] = None if found.plain() else found.arranged
        return NONE

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_looks": None, "_guard": None, "_places": None}  # of this module, not of a copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self._held is not None:
            self._places = Attributes(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.MADE_OF is None:
            return super().__reduce_ex__(protocol)
        return _blank, (self.MADE_OF, self.COMPILED), self.__getstate__()

    def __prepare_scriptable__(self) -> nn.Module:
        """Return the module that it replaces: torch.jit.script takes no conditions on its calls."""
        _told_of_recording("torch.jit.script takes the module itself; use torch.export.")
        original = _original(type(self))
        made: nn.Module = original.__new__(original)
        made.__dict__.update({name: value for name, value in vars(self).items() if name not in OWN})
        return made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel, or the module's own forward where the call is not one that the kernel was verified for."""
        if torch.compiler.is_compiling():
            return self._traced(args, kwargs)
        try:
            result, reason = self._by_kernel(args, kwargs)
        except MachineError as error:
            reason = Reason("build", str(error))
            self.__dict__["_refused"], self.__dict__["_guard"] = reason, None
        if not reason.text:
            values = self.__dict__
            values["kernel_used"], values["kernel_reason"] = True, ""
            values["kernel_calls"] += 1
            arranged = values.get("_arranged")
            return result if arranged is None else arranged(result)
        self._fell_back(reason)
        self._refuse_unrecorded(args, kwargs)
        return super().forward(*args, **kwargs)

    def _changed(self) -> Reason:
        looks: Looks | None = self.__dict__["_looks"]
        if looks is None:
            assert self._held is not None
            looks = self.__dict__["_looks"] = self._held.looks(self).outside(self.OUTSIDE)
        return looks.changed()

    def _by_kernel(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Reason]:
        guard: Guard | None = self.__dict__.get("_guard")
        if guard is not None:
            try:
                found = guard(*args, **kwargs)
            except Exception:  # whatever a value raises that is not as it was: what follows says what it is
                found = None
            if found is not None:
                return self.COMPILED.result(*found)
        reason = self._refused if self._refused.text else self._changed()
        if reason.text:
            return None, reason
        result, reason = self._looked_at(args, kwargs)
        anew = guard is None or self.__dict__["_looks"].moved()
        if anew and not reason.text and not self.COMPILED.not_written:
            self.__dict__["_guard"] = self._guarded(args, kwargs)
        return result, reason

    def _looked_at(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Reason]:
        compiled, leaves = self.COMPILED, args
        other = kwargs or len(args) != compiled.served.leaves or any(type(value) not in LEAVES for value in args)
        if other or nested(self.GIVEN):
            forward = _original(type(self)).forward
            try:
                found = leaves_given(forward, self, args, kwargs, compiled.served.leaves, self.GIVEN)
            except TypeError:
                return None, Reason("arguments", "they do not fit the forward.")  # which will say so itself
            if isinstance(found, Reason):
                return None, found
            leaves = found
        result, reason = compiled.result_or_reason(self, leaves, lambda sizes: self._agrees(args, kwargs, sizes))
        if not reason.text and self.__dict__.get("_results") is None:
            try:
                reason = self._keep(results_of(super().forward, args, kwargs))
            except Exception as error:  # whatever a module raises without data
                reason = Reason("results", f"how the module arranges its results is not known ({error}).")
        if reason.text or not compiled.not_written:
            return (None, reason) if reason.text else (result, NONE)
        changed = targets(self, leaves, compiled.not_written)
        return written_to(changed, self.__dict__["_changes"], result)

    def _guarded(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Guard:
        """Return what answers calls that are given like this one, which took the kernel, while nothing changes."""
        compiled, served, values = self.COMPILED, self.COMPILED.served, self.__dict__
        forward = _original(type(self)).forward
        values.setdefault("_guard", None)
        lines = Lines(inspect.signature(forward).parameters)
        parameters, given = guarded_inputs(lines, forward, self, args, kwargs, served.leaves)
        values["_looks"].guarded(lines)
        for i, leaf in enumerate(given):
            if i in served.others:
                lines.same(leaf, served.others[i].value)
            elif i not in served.taken:
                lines.refuse(f"{leaf} is not None")
        names = [
            given[int(a.path)] if a.role in ("input", "scalar") else lines.let(read(lines, self, a.path))
            for a in served.arguments
        ]
        if compiled.train_mode_only:
            lines.refuse(f"not {lines.name(values)}['training']")
        leaves = leaves_given(forward, self, args, kwargs, served.leaves, self.GIVEN)
        served_values = () if isinstance(leaves, Reason) else served.values(self, leaves)
        known = () if isinstance(served_values, Reason) else served_values
        return lines.function(parameters, compiled.guarded(lines, names, known))

    def _agrees(self, args: Sequence[Any], kwargs: dict[str, Any], sizes: tuple[Any, ...]) -> Reason:
        """Ask the module itself, without data, what it makes of sizes other than the verified ones."""
        try:
            found = results_of(super().forward, args, kwargs)
        except Exception as error:  # whatever a module raises at sizes that it does not take
            return Reason("sizes", f"the module itself does not take these sizes ({error}).")
        sizes = sizes[: len(sizes) - self.COMPILED.hidden]
        if found.shapes != sizes:
            return Reason("sizes", f"it would return {sizes}, and the module {found.shapes}.")
        known: Results | None = self.__dict__.get("_results")
        if self.COMPILED.not_written and known is not None and found.same != known.same:
            return Reason("sizes", "the module returns others of the tensors that it changes in place.")
        return NONE

    def _traced(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return what torch.compile and torch.export record: the operator where its contract holds, else the module."""
        reason = self._refused.text
        if not reason and self._results is None:
            reason = "how the module arranges its results is not known: call it once before it is recorded."
        if not reason and self._held is not None and self._places is not None:
            reason = _changed_traced(self, self._held, self._places, self.OUTSIDE)
        if not reason:
            leaves, reason = leaves_traced(self.INPUTS, args, kwargs, self.COMPILED.served.leaves, self.GIVEN)
        if not reason:
            result, reason = self.COMPILED.traced(self, leaves)
            if not reason:
                return result if self._arranged is None or self._results is None else self._results.arranged(result)
        _told_of_recording(reason)
        self._refuse_unrecorded(args, kwargs)
        return super().forward(*args, **kwargs)

    def _refuse_unrecorded(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raise ValueError for a call of which the module's own text says nothing, where that text was recorded.

        A loop that was recorded at twelve steps makes twelve of any number.
        """
        recorded: list[str] = _globals_of(self).get("RECORDED_FOR", [])
        given = [*args, *(kwargs[x.name] for x in self.INPUTS[len(args) :] if x.name in kwargs)] if recorded else []
        for i, (known, value) in enumerate(zip(recorded, given, strict=False)):
            if isinstance(value, torch.Tensor) and not _as_recorded(known, value):
                has = f"{value.dtype}{list(value.shape)}".removeprefix("torch.")
                raise ValueError(
                    f"Input {i} is {has}, and this file's forward was recorded for {known}: at "
                    "others it may compute something else than your module. Call your module there, as "
                    "rag_kernels.apply does, or record it for such calls."
                )

    def _fell_back(self, reason: Reason) -> None:
        values = self.__dict__
        values["kernel_used"], values["kernel_reason"] = False, reason.text
        known = self.kernel_fallbacks.get(reason.what)
        if known is None:
            warnings.warn(f"The compiled kernel is not used: {reason.text}", KernelNotUsed, stacklevel=5)
        self.kernel_fallbacks[reason.what] = Fallback(known.calls + 1 if known else 1, reason.text)


def _globals_of(module: DropIn) -> dict[str, Any]:
    """Return what the file of a `ModelNew` defines; nothing where a module of a program was given the kernel."""
    found: dict[str, Any] = getattr(getattr(type(module), "VERIFIED", None), "__globals__", {})
    return found


def _as_recorded(known: str, value: torch.Tensor) -> bool:
    """Return whether a tensor is one of those that "float32[?, 8]" says; "float" is any floating type."""
    dtype, sizes = known.rstrip("]").split("[")
    wanted = sizes.split(", ") if sizes else []
    typed = value.is_floating_point() if dtype == "float" else str(value.dtype) == f"torch.{dtype}"
    alike = typed and value.dim() == len(wanted)
    return alike and all(size == "?" or has == int(size) for size, has in zip(wanted, value.shape, strict=True))


def with_kernel(module: nn.Module, compiled: CompiledForward, results: Results | None = None) -> nn.Module:
    """Make a module run a kernel that was verified for it as it is now, in place; return it.

    Its parameters, hooks, names and class relations stay: it becomes of a class of its own below its class. `results`
    is how it arranges its results, which its first call tells otherwise.
    """
    kind = _kind(getattr(module, "MADE_OF", None) or type(module), compiled)
    kind.RESULTS = results
    module.__class__ = kind
    assert isinstance(module, DropIn)
    module._start(NONE)
    compiled.op  # noqa: B018  compilers of graphs do not register operators
    return module


def _kind(original: type[nn.Module], compiled: CompiledForward) -> type[DropIn]:
    values: dict[str, Any] = {"COMPILED": compiled, "GIVEN": compiled.arranged, "MADE_OF": original}
    values |= {"__module__": original.__module__, "__doc__": original.__doc__}
    return type(f"{original.__name__}WithKernel", (DropIn, original), values)


def _blank(original: type[nn.Module], compiled: CompiledForward) -> nn.Module:
    """Return a module without content, for copies and pickles of what `with_kernel` made."""
    kind = _kind(original, compiled)
    compiled.op  # noqa: B018
    return kind.__new__(kind)


def _original(cls: type) -> Any:
    """Return the class that comes after `DropIn` among the bases: the module that is replaced."""
    bases = cls.__mro__
    return bases[bases.index(DropIn) + 1]


def _siblings(original: type) -> list[type]:
    """Return the modules' classes of the file that defines this one."""
    space = getattr(original.forward, "__globals__", {})  # type: ignore[attr-defined]
    return [v for v in space.values() if isinstance(v, type) and issubclass(v, nn.Module)] + [original]


def _other_arguments(
    init: Callable[..., Any], verified: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any], module: nn.Module
) -> Reason:
    """Return which constructor argument differs from the verified ones, in whatever way they are given."""
    signature = inspect.signature(init)
    expected, given = signature.bind(module, *verified), signature.bind(module, *args, **kwargs)
    expected.apply_defaults()
    given.apply_defaults()
    for name, value in list(expected.arguments.items())[1:]:
        if not _same(given.arguments[name], value):
            text = f"it was constructed with {name}={given.arguments[name]!r}, and verified with {name}={value!r}."
            return Reason(name, text)
    return NONE


def _same(given: Any, verified: Any) -> bool:
    if isinstance(verified, torch.Tensor):
        alike = isinstance(given, torch.Tensor) and (given.dtype, given.shape) == (verified.dtype, verified.shape)
        return alike and bool((given == verified).all())  # torch.equal knows no floats of eight bits
    if isinstance(verified, list | tuple):
        pairs = list(zip(given, verified, strict=False)) if type(given) is type(verified) else []
        return type(given) is type(verified) and len(given) == len(verified) and all(_same(a, b) for a, b in pairs)
    if isinstance(verified, PLAIN):
        return type(given) is type(verified) and repr(given) == repr(verified)
    try:
        return bool(given == verified or given == frozen(verified))
    except (RuntimeError, ValueError, TypeError):
        return False


def _with_signature(forward: Any, original: Any) -> Any:
    """Return the same function under the names of the original's arguments, which torch.export and help show."""
    code = forward.__code__.replace()  # of its own: torch.compile counts what it compiles by code
    made = types.FunctionType(code, forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__)
    made.__doc__, made.__signature__ = forward.__doc__, inspect.signature(original)  # type: ignore[attr-defined]
    return made


def _as_it_was(now: Any, value: Any) -> bool:
    """Return whether a value is what it was: a plain one, or an object of plain ones, such as a model's config."""
    if isinstance(value, Object):
        fields = value.place
        same = all(name in fields and _as_it_was(fields[name], one) for name, one in value.fields.items())
        # Asked one by one: a guard for each.
        return now is value.value and same and all(name in value.fields for name in fields)
    if isinstance(value, dict):
        return (
            type(now) is dict
            and len(now) == len(value)
            and all(k in now and _as_it_was(now[k], v) for k, v in value.items())
        )
    if isinstance(value, list | tuple):
        return type(now) is type(value) and len(now) == len(value) and all(map(_as_it_was, now, value))
    return isinstance(value, bool | int | float | str | None | torch.dtype | torch.device) and bool(now == value)


def _told_of_recording(reason: str) -> None:
    """Warn, while a graph is recorded, that it is the module's."""
    warnings.warn(f"The compiled kernel is not used in what is recorded: {reason}", KernelNotUsed, stacklevel=2)


# All that `torch.compiler.assume_constant_result` sets; it imports the compiler for it, which takes as long as torch.
_told_of_recording.__dict__["_dynamo_marked_constant"] = True


def _changed_traced(
    module: nn.Module,
    held: Held,
    attributes: Attributes,
    places: Sequence[tuple[Any, str, dict[str, Any]]],
) -> str:
    """Return what is not as it was, for a compiler that records Python: each look becomes a guard.

    Attributes that are no plain values are not looked into: there the module is recorded.
    """
    for path, values in held.parts.items():
        part = state_at(module, path) if path else module
        for name, value in values.items():
            now = getattr(part, name)
            if name in WATCHED:
                differs = len(now) != len(value) or any(key not in now or now[key] is not value[key] for key in value)
            else:
                differs = not _as_it_was(now, value)
            if differs:
                return f"{path}.{name}".lstrip(".") + " is not as it was, or no plain value."
        if new := held.added(attributes.of[path], path):
            return f"{new} was set after the module was constructed."
    for one, other in held.tied:
        if state_at(module, one) is not state_at(module, other):
            return f"{one} is no longer the same tensor as another one."
    for place, told, values in places:
        for name, value in values.items():
            now = place.get(name)
            if isinstance(value, Cached):  # of these PyTorch 2.11 knows no type and no identity
                differs = _within(now) is not value.function
            elif isinstance(value, VALUES):
                differs = now != value
            else:
                differs = id(unwrapped(now)) != id(unwrapped(value))
            if differs:
                return f"{told}.{name}".lstrip(".") + " is not as it was."
    return ""


def _within(function: Any) -> Any:
    """Return the function within a cached one; PyTorch 2.11 compiles no `hasattr` of one."""
    try:
        return function.__wrapped__
    except AttributeError:
        return None
