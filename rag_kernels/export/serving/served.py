"""The calls that a kernel serves, asked in a microsecond at each call: sizes, types, places, and modes of torch.

Comes in: the arguments for which the kernel was verified, with their free sizes. Goes out: the arguments of a call in
the kernel's order, or the reason why it is not served. Knows nothing of how kernels are built and run.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from rag_kernels.export.serving.guard import Lines

if TYPE_CHECKING:
    import torch

Size = int | str  # a number that stays, or a free size: "N", "2*N"; of an output "2*N-1" and "(N+1)//2" too
Shape = tuple[Size, ...]
Sizes = tuple[int, ...]
PLAIN = (bool, int, float, str, type(None))  # values of which a sentence tells what they are
ALIGNED_BYTES = 64  # as PyTorch allocates on the CPU; more on a GPU
MANY = 3  # tensors, from which on torch's own check of all of them is quicker than a question at a time
MOST_ELEMENTS = 2**31 - 1  # beyond it an index of 32 bits, which no judged size needed more than, would wrap around


class Reason(NamedTuple):
    """Why a call does not take the kernel: `what` differs, and a sentence. Empty where nothing does."""

    what: str = ""
    text: str = ""


NONE = Reason()
RELATED = Reason("sizes", "several of its sizes are free, and how they hang together only the module can say.")


class Argument(NamedTuple):
    """`path` is a leaf of the call for inputs and scalars, else a place in the module."""

    role: str  # "input", "scalar", "parameter" or "buffer"
    path: str
    shape: Any  # of a tensor; of a scalar its value, or () in files written before values were
    dtype: str
    free: Shape = ()  # the shape with its free sizes; empty where it is the verified one alone


class Other(NamedTuple):
    """A leaf of the verified call that is no tensor: the module was traced with this value, so that it stays."""

    leaf: int
    name: str  # of forward's argument
    value: Any


class Output(NamedTuple):
    """One output: its verified shape, its type, and its shape by the free sizes of the arguments."""

    shape: Sizes
    dtype: str
    free: Shape = ()


class Served:
    """Which calls are served. Only the first of each size is looked at closely, and those that are not served."""

    def __init__(
        self,
        arguments: Sequence[Argument],
        outputs: Sequence[Output],
        backend: str,
        only: Sequence[dict[str, int]] = (),
        others: Sequence[Other] = (),
    ) -> None:
        import torch

        self.only = list(only)  # what the named sizes may be together; empty: anything
        self.others = {other.leaf: other for other in others}

        self.arguments, self.outputs, self.backend = list(arguments), list(outputs), backend
        taken = [int(a.path) if a.role in ("input", "scalar") else -1 for a in arguments]
        self.taken = frozenset(taken) - {-1}
        self.leaves = max(self.taken | self.others.keys(), default=-1) + 1
        self.places = [
            (None, place) if place >= 0 else (attrgetter_of(a.path), -1)
            for a, place in zip(arguments, taken, strict=True)
        ]
        self.tensors = [i for i, a in enumerate(arguments) if a.role != "scalar"]
        self.scalars = [i for i, a in enumerate(arguments) if a.role == "scalar"]
        shapes = [arguments[i].free for i in self.tensors]
        self.free = {_factor(s)[1] for shape in shapes for s in shape if isinstance(s, str)}
        self.verified = [tuple(arguments[i].shape) for i in self.tensors]
        self.related = len(self.free) > 1 and not only  # perhaps: how several free sizes hang together was not told
        self.kinds = (torch.Tensor, torch.nn.Parameter)
        self.moving = [i for i in self.tensors if any(isinstance(size, str) for size in arguments[i].free)]
        self.known: dict[tuple[Sizes, ...], tuple[Sizes, ...]] = {}  # of outputs, by the shapes that move
        self.refused: dict[tuple[Sizes, ...], Reason] = {}
        self.torch, self.forward_ad = torch, torch.autograd.forward_ad
        self.autocast, self.tracing = torch._C._is_any_autocast_enabled, torch._C._is_tracing
        self.transformed = torch._C._are_functorch_transforms_active

    def values(self, module: Any, leaves: Sequence[Any]) -> list[Any] | Reason:
        """Return the arguments of a call in the kernel's order."""
        if len(leaves) != self.leaves or len(self.taken) != self.leaves:
            reason = self.other_inputs(leaves)
            if reason is not None:
                return reason
        return [leaves[place] if get is None else get(module) for get, place in self.places]

    def values_traced(self, module: Any, leaves: Sequence[Any]) -> list[Any] | None:
        """Return the same in words that compilers of Python know; None for another number of inputs."""
        if self.other_inputs(leaves) is not None:
            return None
        return [
            leaves[int(a.path)] if a.role in ("input", "scalar") else state_at(module, a.path) for a in self.arguments
        ]

    def other_inputs(self, leaves: Sequence[Any]) -> Reason | None:
        """Return how many inputs there are, or which was None, where that is not as it was verified."""
        for i, other in self.others.items():
            if i < len(leaves) and not same_constant(leaves[i], other.value):
                now = repr(leaves[i]) if isinstance(leaves[i], PLAIN) else f"a {type(leaves[i]).__name__}"
                return Reason(other.name, f"{other.name} is {now}, and was {other.value!r} when it was verified.")
        extra = [i for i, x in enumerate(leaves) if x is not None and i not in self.taken and i not in self.others]
        if extra and extra[0] < self.leaves:
            return Reason(str(extra[0]), f"input {extra[0]} was None when it was verified.")
        if extra or len(leaves) < self.leaves:
            return Reason("inputs", f"it got {len(leaves)} inputs, and was verified with {self.leaves}.")
        return None

    def outputs_of(self, values: Sequence[Any], agreed: Callable[[tuple[Sizes, ...]], Reason]) -> tuple[Any, Reason]:
        """Return the sizes of the outputs, or the reason why the call is not served.

        `agreed` is asked at sizes that are not those of the verification, once for each.
        """
        try:
            known: tuple[Sizes, ...] | None = self.guard(*values)
        except Exception:  # whatever a value raises that is not as it was: `other` says what it is
            known = None
        return (known, NONE) if known is not None else self._looked_at(values, agreed)

    @cached_property
    def guard(self) -> Callable[..., tuple[Sizes, ...] | None]:
        """Return the sizes of the outputs at once; None, or an error, for what must be looked at closely."""
        lines = Lines()
        names = [f"v{i}" for i in range(len(self.arguments))]
        return lines.function(", ".join(names), self.guarded(lines, names))

    def guarded(self, lines: Lines, names: Sequence[str], served: Sequence[Any] = ()) -> str:
        """Add what is asked of modes and of the arguments, which have these names; return the text of the outputs'
        sizes.

        `served` are the arguments of a call that is: most calls have tensors like these, which torch asks at once.
        """
        fixed = [i for i in self.tensors if i not in self.moving]
        alike = tensors_like([served[i] for i in fixed]) if served and len(fixed) >= MANY else None
        others = [i for i in range(len(names)) if alike is None or i not in fixed]
        modes = [f"{lines.name(asked)}()" for asked in (self.autocast, self.transformed, self.tracing)]
        if alike is None or not _check_tells_modes(self.backend):
            while modes:
                lines.refuse(modes.pop())
        lines.refuse(f"{lines.name(self.forward_ad)}._current_level >= 0")
        device = ""
        if alike is not None:
            if self.backend != "cpu":
                device = lines.let(f"{names[fixed[0]]}.device")
            unlike = [one for i in fixed for one in self._unlike(lines, i, names[i], device)]
            asked = f"not {lines.name(alike)}({', '.join(names[i] for i in fixed)})"
            lines.refuse(f"{asked} and ({' or '.join([*modes, *unlike])})")
        for i in others:
            for one in self._unlike(lines, i, names[i], device):
                lines.refuse(one)
            if i in self.tensors and not device and self.backend != "cpu":
                device = lines.let(f"{names[i]}.device")
        return f"{lines.name(self.known)}[({''.join(f'{names[i]}.shape, ' for i in self.moving)})]"

    def _unlike(self, lines: Lines, i: int, name: str, device: str) -> list[str]:
        """Return the conditions under which an argument is not served."""
        argument = self.arguments[i]
        if argument.role == "scalar":
            of_kind = [f"{lines.type}({name}) is not {lines.name(_kind(argument))}"]
            return of_kind if argument.shape == () else [lines.unlike_constant(name, argument.shape)]
        one, other = map(lines.name, self.kinds if argument.role == "input" else self.kinds[::-1])
        asked = [
            f"({lines.type}({name}) is not {one} and {lines.type}({name}) is not {other})",
            f"{name}.dtype is not {lines.name(getattr(self.torch, argument.dtype))}",
            f"{name}.layout is not {lines.name(self.torch.strided)}",
            f"not {name}.is_{self.backend}",
        ]
        asked += [f"{name}.device != {device}"] * bool(device)
        if i not in self.moving:
            asked.append(f"{name}.shape != {lines.name(tuple(argument.free or argument.shape))}")
        return asked

    def _looked_at(self, values: Sequence[Any], agreed: Callable[[tuple[Sizes, ...]], Reason]) -> tuple[Any, Reason]:
        reason = self.other(values)
        if reason.text:
            return None, reason
        moved = tuple(values[i].shape for i in self.moving)
        outputs, reason = self.known.get(moved), self.refused.get(moved, NONE)
        if outputs is None and not reason.text:
            outputs = self.sizes_made(values)
            reason = NONE if self.as_verified(values) else agreed(outputs)
            if len(self.known) + len(self.refused) > 1000:
                self.known.clear()
                self.refused.clear()
            if reason.text:
                self.refused[moved] = reason
            else:
                self.known[moved] = outputs
        return None if reason.text else outputs, reason

    def other(self, values: Sequence[Any]) -> Reason:
        """Return in what a call differs from those that are served."""
        device = None
        bound: dict[str, int] = {}
        for argument, value in zip(self.arguments, values, strict=True):
            if argument.role == "scalar":
                reason = _other_number(argument, value)
            else:
                reason = _other_tensor(argument, value, self.kinds) or _other_shape(argument, value, bound)
                if not reason:
                    device = device or value.device
                    reason = self._elsewhere(argument, value, device)
            if reason:
                return reason
        if self._makes_nothing(bound):
            return Reason("sizes", "its outputs would have no elements, and none of no elements was tried.")
        return NONE if self._judged(bound) else Reason("sizes", self._not_judged(bound))

    def _makes_nothing(self, bound: dict[str, int], holds: Callable[[Any], bool] = bool) -> bool:
        """Return whether an output may be empty where no argument is: one that is some elements shorter, or a part."""
        shorter = [s for o in self.outputs for s in o.free if isinstance(s, str) and ("-" in s or "//" in s)]
        return bool(self.free) and not all(holds(_size(size, bound) > 0) for size in shorter)

    def _judged(self, bound: dict[str, int], holds: Callable[[Any], bool] = bool) -> bool:
        """Return whether the named sizes may be what they are."""
        return not self.only or any(all(holds(bound[n] == size) for n, size in one.items()) for one in self.only)

    def _not_judged(self, bound: dict[str, int]) -> str:
        told, *known = (", ".join(f"{n}={size}" for n, size in one.items()) for one in (bound, *self.only))
        return f"{told} is none of the sizes that it was verified at: {'; '.join(known)}."

    def _elsewhere(self, argument: Argument, value: torch.Tensor, device: torch.device) -> Reason | None:
        told = name_of(argument.path)
        if value.device.type != self.backend:
            return Reason(argument.path, f"{told} is on {value.device}, and the kernel is for {self.backend}.")
        if value.device != device:
            return Reason(argument.path, f"{told} is on {value.device}, and others are on {device}.")
        return None

    def sizes_made(self, values: Sequence[Any]) -> tuple[Sizes, ...]:
        """Return the sizes of the outputs for arguments that are served; also of sizes that are symbols."""
        bound: dict[str, int] = {}
        for i in self.tensors:
            for size, has in zip(self.arguments[i].free, values[i].shape, strict=False):
                _bind(size, has, bound)
        return tuple(
            tuple(_size(s, bound) for s in output.free) if self.free else output.shape for output in self.outputs
        )

    def verified_sizes(self) -> dict[str, int]:
        """Return what the free sizes were when the kernel was verified."""
        bound: dict[str, int] = {}
        for i in self.tensors:
            for size, has in zip(self.arguments[i].free, self.arguments[i].shape, strict=False):
                _bind(size, has, bound)
        return bound

    def shape_at(self, argument: Argument, bound: dict[str, int]) -> Sizes:
        """Return the shape of an argument where the free sizes are these."""
        return tuple(_size(size, bound) for size in argument.free or argument.shape)

    def as_verified(self, values: Sequence[Any], holds: Callable[[Any], bool] = bool) -> bool:
        """Return whether the sizes are the very ones of the verification."""
        pairs = zip(self.tensors, self.verified, strict=True)
        return all(
            len(values[i].shape) == len(shape)
            and all(holds(a == b) for a, b in zip(values[i].shape, shape, strict=True))
            for i, shape in pairs
        )

    def other_traced(self, values: Sequence[Any], holds: Callable[[Any], bool] = bool, *, anywhere: bool = True) -> str:
        """Return what is not served as a compiler of graphs asks, in a sentence without sizes: these may be symbols.

        `holds` tells whether a condition on sizes does: as a guard, or only where it always will. `anywhere` takes
        tensors of whatever device.
        """
        bound: dict[str, int] = {}
        for argument, value in zip(self.arguments, values, strict=True):
            if argument.role == "scalar":
                other = _other_number(argument, value) is not None
            else:
                other = _other_tensor(argument, value, None) is not None or _other_size(argument, value, bound, holds)
                if not other and not anywhere and value.device.type != self.backend:
                    return f"{name_of(argument.path)} is not on {self.backend}."
            if other:
                return (
                    f"{name_of(argument.path)} is not {_wanted(argument)}, as it was verified, for all sizes recorded."
                )
        if not self._judged(bound, holds):
            return "its sizes are none of those that it was verified at, for all sizes recorded."
        if self._makes_nothing(bound, holds):
            return "its outputs may have no elements, and none of no elements was tried."
        return RELATED.text if self.related and not self.as_verified(values, holds) else ""

    def mode(self) -> Reason:
        """Return which mode of torch is on in which the kernel was not verified."""
        if self.autocast() and self.torch.is_autocast_enabled(self.backend):
            return Reason("autocast", "autocast is on, and it was verified without.")
        if self.tracing():
            return Reason("trace", "torch.jit.trace cannot record it; use torch.export.")
        if self.transformed():
            return Reason("torch.func", "a transform of torch.func is on, and it was verified without.")
        if self.forward_ad._current_level >= 0:
            return Reason("forward gradients", "forward-mode gradients are wanted, and it has none.")
        return NONE

    def told(self, values: Sequence[Any]) -> str:
        """Return the arguments of a call as a sentence has them."""
        pairs = zip(self.arguments, values, strict=True)
        return ", ".join(f"{name_of(a.path)} is {v!r}" if a.role == "scalar" else _has(a, v) for a, v in pairs)

    def graded(self, values: Sequence[Any]) -> Reason:
        """Return of what gradients are wanted."""
        for i in self.tensors:
            if values[i].requires_grad:
                told = name_of(self.arguments[i].path)
                return Reason("gradients", f"gradients are wanted of {told}, and it has none (use torch.no_grad()).")
        return NONE


def tensors_like(values: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """Return torch's own check that tensors are as these are: class, type, device, sizes and strides.

    It takes a tenth of a microsecond each, and is what torch.compile asks. It is not promised to stay: None where it is
    not there, or does not tell apart what has to be.
    """
    try:
        check = _check_of(values) if _check_tells_apart() else None
        return check if check is not None and check(*values) else None
    except Exception:  # whatever another version raises
        return None


def _check_of(values: Sequence[torch.Tensor]) -> Callable[..., bool]:
    from torch._C._dynamo import guards

    torchs: Any = guards
    sizes, strides = [list(v.shape) for v in values], [list(v.stride()) for v in values]
    made: Callable[..., bool] = torchs.TensorGuards(
        *values, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return made


@cache
def _check_tells_apart() -> bool:
    """Return whether torch's check says yes to what it was made of, and no to everything else that a contract names."""
    import torch

    class Other(torch.Tensor):
        pass

    one = torch.nn.Parameter(torch.zeros(4, 4))
    check = _check_of([one])
    if not check(one):
        return False
    for data in (one.data.t(), one.data.double(), one.data.int(), one.data[:2], one.data[None], one.data[::2, ::2]):
        changed = torch.nn.Parameter(torch.zeros(4, 4), requires_grad=False)
        fixed = _check_of([changed])
        changed.data = data
        if fixed(changed):
            return False
    plain = torch.zeros(4, 4)
    others = (plain.as_subclass(Other), one, plain.to_sparse(), torch.zeros(4, 4, device="meta"), None)
    return not any(_check_of([plain])(other) for other in others)


@cache
def _check_tells_modes(device: str) -> bool:
    """Return whether torch's check, made without them, says no under autocast, in transforms and in a trace."""
    import torch

    one = torch.zeros(4, 4, device=device)
    check, said = _check_of([one]), list[bool]()

    def ask(value: torch.Tensor) -> torch.Tensor:
        said.append(check(one))
        return value.sum()

    kind = torch.bfloat16
    try:
        with torch.autocast(device, dtype=kind):
            ask(one)
        torch.func.vmap(ask)(one)
        torch.func.grad(ask)(one)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nobody should trace any more
            torch.jit.trace(ask, one, check_trace=False)  # type: ignore[no-untyped-call]
    except Exception:  # whatever another version raises
        return False
    return check(one) and not any(said)


def same_constant(value: Any, known: Any) -> bool:
    """Return whether a constant is of the type and value of another: NaN is like NaN, and 0.0 is not -0.0."""
    if type(value) is not type(known):
        return False
    if value != known:
        return bool(value != value and known != known)
    return type(value) is not float or value != 0 or str(value) == str(known)


def placed(value: torch.Tensor, any_alignment: bool) -> torch.Tensor:
    """Return a tensor as a kernel wants it: contiguous, no lazy negation, aligned as it was when it was judged."""
    if value.is_contiguous() and not value.is_neg() and not value.is_conj():
        return value if any_alignment or not value.data_ptr() % ALIGNED_BYTES else value.detach().clone()
    value = value.detach().resolve_conj().resolve_neg().contiguous()
    return value if any_alignment or not value.data_ptr() % ALIGNED_BYTES else value.clone()


def attrgetter_of(path: str) -> Callable[[Any], Any]:
    """Return the quickest function that reads a dotted path of a module."""
    return partial(_at, path) if any(part.isdigit() for part in path.split(".")) else attrgetter(path)


def _at(path: str, module: Any) -> Any:
    return state_at(module, path)


def state_at(module: Any, path: str) -> Any:
    """Read a dotted path of a module; a number is a place in a list, or a part's name."""
    for part in path.split("."):
        module = module[int(part)] if isinstance(module, list | tuple) else getattr(module, part)
    return module


def name_of(path: str) -> str:
    """Name an argument: an input by its position, a parameter by its path."""
    return f"input {path}" if path.isdigit() else path


def _factor(size: str) -> tuple[int, str]:
    factor, _, name = size.rpartition("*")
    return int(factor or 1), name


def _size(size: Size, bound: dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    whole, _, parts = size.partition("//")
    whole = whole.strip("()")
    times, sign, more = whole.partition("-") if "-" in whole else whole.partition("+")
    factor, name = _factor(times)
    return (factor * bound[name] + int(f"{sign}{more or 0}")) // int(parts or 1)


def _bind(size: Size, has: int, bound: dict[str, int]) -> None:
    """Let the first size that has a name say what it is in this call."""
    if isinstance(size, str):
        factor, name = _factor(size)
        bound.setdefault(name, has // factor)


def _kind(argument: Argument) -> Any:
    """Return the type of a number; what no value's type is where it is not known."""
    return getattr(builtins, argument.dtype, None) if argument.shape == () else type(argument.shape)


def _other_number(argument: Argument, value: Any) -> Reason | None:
    kind, verified = argument.dtype, argument.shape
    if type(value).__name__ == kind if verified == () else same_constant(value, verified):
        return None
    wanted = kind if verified == () else repr(verified)
    return Reason(argument.path, f"{name_of(argument.path)} is {value!r}, and was verified as {wanted}.")


def _other_tensor(argument: Argument, value: Any, kinds: tuple[type, ...] | None) -> Reason | None:
    """Return `kinds` are the classes that a tensor may have; None asks nothing, for tensors that stand for others."""
    import torch

    told, kind = name_of(argument.path), type(value)
    if not isinstance(value, torch.Tensor) or (kinds is not None and kind not in kinds):
        return Reason(argument.path, f"{told} is a {kind.__name__}, and was verified as a torch.Tensor.")
    if value.dtype != getattr(torch, argument.dtype):
        return Reason(f"{argument.path} {value.dtype}", _differs(argument, value))
    if value.layout is not torch.strided:
        return Reason(argument.path, f"{told} has the layout {value.layout}, and was verified as torch.strided.")
    return None


def _other_shape(argument: Argument, value: torch.Tensor, bound: dict[str, int]) -> Reason | None:
    """Return a size that is not served; free sizes are bound by the first argument that has them."""
    if not _other_size(argument, value, bound):
        return None
    none = argument.free and not 0 < value.numel() <= MOST_ELEMENTS
    more = " None of no, or of 2**31, elements was tried." if none else ""
    return Reason(argument.path, f"{_differs(argument, value)}{more}")


def _other_size(
    argument: Argument, value: torch.Tensor, bound: dict[str, int], holds: Callable[[Any], bool] = bool
) -> bool:
    """Return whether a size is not served."""
    shape = argument.free or tuple(argument.shape)
    if len(value.shape) != len(shape):
        return True
    count = 1
    for size, has in zip(shape, value.shape, strict=True):
        _bind(size, has, bound)
        if not holds(has == _size(size, bound)):
            return True
        count = count * has
    return bool(argument.free) and not (holds(count > 0) and holds(count <= MOST_ELEMENTS))


def _has(argument: Argument, value: torch.Tensor) -> str:
    return f"{name_of(argument.path)} is {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _differs(argument: Argument, value: torch.Tensor) -> str:
    return f"{_has(argument, value)}, and was verified as {_wanted(argument)}."


def _wanted(argument: Argument) -> str:
    return f"{argument.dtype}[{', '.join(map(str, argument.free or argument.shape))}]"
