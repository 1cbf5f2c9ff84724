"""A verified kernel as a torch operator, `torch.ops.rag_kernels.NAME`: what compilers of graphs can record.

Comes in: the kernel and the calls that it serves. Goes out: the operator, with its schema, its fake form (sizes without
data) and its gradients: those of the functional form, computed again by an operator of its own, at the verified sizes.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rag_kernels.export.serving.launch import KernelRefused
from rag_kernels.export.serving.served import NONE, RELATED, Served, Sizes

if TYPE_CHECKING:
    import torch

SCALARS = {"int": "int", "float": "float", "bool": "bool"}
REGISTRY = "_rag_kernels_operators"  # a module of the process: exported packages have this file each for itself


class Verified(Protocol):
    """What is needed of a `CompiledForward`."""

    @property
    def name(self) -> str: ...
    @property
    def functional(self) -> str: ...
    @property
    def served(self) -> Served: ...
    @property
    def backend(self) -> str: ...
    @property
    def tier(self) -> str: ...

    @property
    def backward(self) -> Backward | None: ...

    def run(self, values: Sequence[Any], sizes: Sequence[Sizes]) -> Any: ...


class Backward(NamedTuple):
    """A kernel for the gradients: where each of its arguments comes from, and whose gradient each output is."""

    kernel: Verified
    takes: tuple[tuple[str, int], ...]  # ("grad" or "made", number of an output) or ("value", number of an argument)
    gives: tuple[int, ...]  # numbers of arguments
    # Where both were judged as one, at the same sizes: how many of the forward's last outputs are for the backward
    # alone; and numbers of arguments of which no gradients were asked.
    saved: int | None = None
    fixed: tuple[int, ...] = ()


class Form(NamedTuple):
    """What torch knows of an operator: with another form it is another operator."""

    given: str  # the arguments, as in a schema
    result: str
    device: str | None  # None without a tensor to choose by
    kinds: tuple[str, ...]  # of the arguments
    made: tuple[int, ...]  # outputs that the backward is given
    saved: int  # how many of the last outputs are for the backward alone


@dataclass
class Registered:
    """An operator of torch, which is registered once, and what answers it: the last kernel of its name.

    Torch frees an operator when another of its name comes, whoever still holds it.
    """

    form: Form
    op: Any = None
    answers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asking(self, what: str) -> Callable[..., Any]:
        """Return a function that asks whatever answers now."""
        answers = self.answers
        return lambda *given: answers[what](*given)


def registered(name: str, form: Form) -> tuple[str, Registered]:
    """Return the operator of a name; where that has another form, one of the next name that is free."""
    module = sys.modules.setdefault(REGISTRY, ModuleType(REGISTRY))
    known: dict[str, Registered] = vars(module).setdefault("operators", {})
    while name in known and known[name].form != form:
        name += "_"
    return name, known.setdefault(name, Registered(form))


def operator_of(kernel: Verified, namespace: str = "rag_kernels", names: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the operator, whose arguments have these names, with this kernel to answer it."""
    import torch

    served = kernel.served
    tensors, many = served.tensors, len(served.outputs)

    def forward(*values: Any) -> Any:
        if served.related:
            _sizes(served, values)
        sizes, reason = served.outputs_of(values, lambda sizes: NONE)
        if reason.text:
            raise ValueError(f"The operator cannot be called so: {reason.text}")
        result = kernel.run(values, sizes)
        return result if kernel.tier == "kernel" else _fresh(result, values)

    def fake(*values: Any) -> Any:
        shapes = zip(_sizes(served, values), served.outputs, strict=True)
        device = values[tensors[0]].device if tensors else kernel.backend
        made = [torch.empty(shape, dtype=getattr(torch, output.dtype), device=device) for shape, output in shapes]
        return made[0] if many == 1 else tuple(made)

    step = kernel.backward if kernel.backward is not None and kernel.backward.saved is not None else None
    made = sorted({i for what, i in step.takes if what == "made"}) if step else []

    def gradients(
        grads: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], wanted: Sequence[bool], *values: Any
    ) -> list[torch.Tensor]:
        """Return the gradients of all tensors, of which the `wanted` ones must be right."""
        asked, found = {i for i, want in zip(tensors, wanted, strict=True) if want}, None
        kept = dict(zip(made, saved, strict=True))
        if step is not None:
            if asked & set(step.fixed):
                raise ValueError("A gradient is wanted that was not when the kernel was written: optimize again.")
            found = kernel_gradients(step, grads, kept, values, tensors)
            if found is None:
                raise ValueError("The kernel for the gradients does not serve what its forward served.")
        elif kernel.backward is not None and asked <= set(kernel.backward.gives):
            found = kernel_gradients(kernel.backward, grads, kept, values, tensors)
        if found is not None:
            return found
        if not served.as_verified(values):
            raise ValueError("Gradients were not verified at other sizes than the kernel's own: call the module there.")
        return functional_gradients(kernel.functional, grads, values)

    name, known = registered(f"{namespace}::{kernel.name}", _form(kernel, names, made, step))
    with known.lock:
        known.answers.update(forward=forward, fake=fake, gradients=gradients)
        if known.op is None:
            known.op = _registered_anew(name, known)
    served.related = served.related and not (kernel.functional and independent(served, kernel.functional))
    op: Callable[..., Any] = known.op
    return op


def _form(kernel: Verified, names: Sequence[str], made: Sequence[int], step: Backward | None) -> Form:
    """Return what torch is told of a kernel whose arguments have these names, a0, a1... where there are none.

    `made` are the outputs that the backward of a training step is given.
    """
    served = kernel.served
    kinds = ["Tensor" if a.role != "scalar" else SCALARS[a.dtype] for a in served.arguments]
    names, many = names or [f"a{i}" for i in range(len(kinds))], len(served.outputs)
    given = ", ".join(f"{kind} {name}" for kind, name in zip(kinds, names, strict=True))
    result = "Tensor" if many == 1 else f"({', '.join(['Tensor'] * many)})"
    device = kernel.backend if served.tensors else None
    kept = step.saved or 0 if step is not None else 0
    return Form(given, result, device, tuple(kinds), tuple(made), kept)


def _registered_anew(name: str, known: Registered) -> Any:
    """Register the operator and the one of its gradients; return it."""
    import torch

    given, result, device, kinds, made, kept = known.form
    tensors = [i for i, kind in enumerate(kinds) if kind == "Tensor"]

    def fake_gradients(
        grads: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], wanted: Sequence[bool], *values: Any
    ) -> list[torch.Tensor]:
        return [torch.empty_like(values[i], memory_format=torch.contiguous_format) for i in tensors]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = [output] if isinstance(output, torch.Tensor) else list(output)
        ctx.save_for_backward(*(inputs[i] for i in tensors), *(results[i] for i in made))
        if kept:
            ctx.mark_non_differentiable(*results[-kept:])
        ctx.scalars = [None if kind == "Tensor" else value for kind, value in zip(kinds, inputs, strict=True)]

    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        saved = list(ctx.saved_tensors)
        values = [saved.pop(0) if kind == "Tensor" else value for kind, value in zip(kinds, ctx.scalars, strict=True)]
        wanted = [ctx.needs_input_grad[i] for i in tensors]
        pulled = grads[: len(grads) - kept]
        found = gradient_op([g.contiguous() for g in pulled], saved, wanted, *values)
        by_place = {i: g for i, g, want in zip(tensors, found, wanted, strict=True) if want}
        return tuple(by_place.get(i) for i in range(len(kinds)))

    custom_op, forward = torch.library.custom_op, known.asking("forward")
    op = custom_op(name, forward, mutates_args=(), device_types=(), schema=f"({given}) -> {result}")
    op.register_fake(known.asking("fake"))
    schema = f"(Tensor[] grads_, Tensor[] saved_, bool[] wanted_{', ' * bool(given)}{given}) -> Tensor[]"
    pulls = known.asking("gradients")
    gradient_op = custom_op(f"{name}_backward", pulls, mutates_args=(), device_types=device, schema=schema)
    gradient_op.register_fake(fake_gradients)
    gradient_op.register_autograd(_no_further, setup_context=lambda ctx, inputs, output: None)
    op.register_autograd(backward, setup_context=setup)
    if device is None or not _directly(op, forward, device):
        op.register_kernel(device)(forward)
    return op


def _no_further(ctx: Any, *grads: Any) -> Any:
    """Raise what is to be done where a gradient of a kernel's gradients is asked for."""
    raise ValueError(
        "A kernel's gradients have none of their own (for `create_graph=True`, a penalty on gradients, a Hessian): "
        "leave this module as it is, out of `apply`, or call the original where such are wanted."
    )


def _directly(op: Any, forward: Callable[..., Any], device: str) -> bool:
    """Register the kernel without the wrappers of `custom_op`, which cost more than its launch.

    Returns False where this torch keeps the parts elsewhere. Where no gradient is wanted, and nothing stands between
    autograd and the device (no tracing, no fake or lazily negated tensor), the dispatcher is asked once, not twice.
    """
    import torch

    try:
        from torch._library.autograd import make_autograd_impl

        library, overload = op._lib, op._opoverload
        general, after = make_autograd_impl(overload, op), torch._C._after_autograd_keyset
        keys = torch._C.DispatchKey
        own = getattr(keys, device.upper())
        idle = torch._C.DispatchKeySet(keys.ADInplaceOrView) | torch._C.DispatchKeySet(keys.BackendSelect)
        asked, graded = torch._C.is_grad_enabled, torch._C._any_requires_grad
    except (ImportError, AttributeError):
        return False
    plain: dict[int, bool] = {}

    def autograd(keyset: Any, *values: Any) -> Any:
        told = keyset.raw_repr()
        bare = plain.get(told)
        if bare is None:
            bare = plain[told] = ((keyset & after) - idle).highestPriorityTypeId() == own
        if bare and not (asked() and graded(*values)):
            return forward(*values)
        return general(keyset, *values)

    library.impl(overload._opname, forward, device.upper())
    library.impl(overload._opname, autograd, f"Autograd{device.upper()}", with_keyset=True)
    return True


def independent(served: Served, functional: str) -> bool:
    """Return whether the functional form takes free sizes that were moved against each other, and returns what was
    told.

    Tried without data. A form in which sizes stand as numbers does not take others: those are then not served.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    moved = {name: size + 2 * i + 1 for i, (name, size) in enumerate(sorted(served.verified_sizes().items()))}
    with FakeTensorMode():
        values = [
            a.shape if a.role == "scalar" else torch.empty(served.shape_at(a, moved), dtype=getattr(torch, a.dtype))
            for a in served.arguments
        ]
        try:
            made = module_fn(functional)(*values)
        except Exception:  # whatever operators raise at sizes that do not fit
            return False
    outputs = [made] if isinstance(made, torch.Tensor) else list(made)
    return tuple(tuple(output.shape) for output in outputs) == served.sizes_made(values)


def module_fn(functional: str) -> Callable[..., Any]:
    """Return the function of a functional form's text."""
    names: dict[str, Any] = {}
    exec(compile(functional, "<functional>", "exec"), names)
    function: Callable[..., Any] = names["module_fn"]
    return function


def _sizes(served: Served, values: Sequence[Any]) -> tuple[Sizes, ...]:
    """Return the sizes of the outputs; raises ValueError for arguments that the kernel was not verified for."""
    if other := served.other_traced(values):
        raise ValueError(f"The operator cannot be called so: {served.other(values).text or other}")
    return served.sizes_made(values)


def _fresh(result: Any, values: Sequence[Any]) -> Any:
    """Return results that share no memory with the arguments: a composed forward may return a view of one."""
    import torch

    held = {v.untyped_storage().data_ptr() for v in values if isinstance(v, torch.Tensor)}

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if tensor.untyped_storage().data_ptr() in held else tensor.contiguous()

    return own(result) if isinstance(result, torch.Tensor) else tuple(map(own, result))


def kernel_gradients(
    backward: Backward,
    grads: Sequence[torch.Tensor],
    kept: Mapping[int, torch.Tensor],
    values: Sequence[Any],
    tensors: Sequence[int],
) -> list[torch.Tensor] | None:
    """Return the gradients by the kernel for them, or zeros; None for calls that it does not serve."""
    import torch

    places: dict[str, Any] = {"grad": grads, "made": kept, "value": values}
    other, given = backward.kernel, [places[what][i] for what, i in backward.takes]
    related = backward.saved is None and other.served.related and not other.served.as_verified(given)
    sizes, reason = other.served.outputs_of(given, lambda sizes: RELATED if related else NONE)
    if reason.text:
        return None
    try:
        made = other.run(given, sizes)
        made = made if other.tier == "kernel" else _fresh(made, given)
    except KernelRefused as error:
        warnings.warn(f"The kernel for the gradients is not used: {error}", stacklevel=2)
        return None
    made = [made] if isinstance(made, torch.Tensor) else made
    by_place = dict(zip(backward.gives, made, strict=True))
    return [by_place[i] if i in by_place else torch.zeros_like(values[i]) for i in tensors]


def functional_gradients(source: str, grads: Sequence[torch.Tensor], values: Sequence[Any]) -> list[torch.Tensor]:
    """Return the gradient of every tensor argument (zeros where there is none), by the functional form."""
    import torch

    leaves = [
        v.detach().requires_grad_(v.dtype.is_floating_point) if isinstance(v, torch.Tensor) else v for v in values
    ]
    # An operator's body runs below autograd, which is asked back for this one computation.
    autograd = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
    with autograd, torch.enable_grad():
        made = module_fn(source)(*leaves)
    outputs = [made] if isinstance(made, torch.Tensor) else list(made)
    flows = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
    wanted = [v for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad]
    found = torch.autograd.grad([o for o, _ in flows], wanted, [g for _, g in flows], allow_unused=True)
    by_leaf = {id(v): g for v, g in zip(wanted, found, strict=True)}
    tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
    return [
        torch.zeros_like(v.detach()) if (g := by_leaf.get(id(v))) is None else g.contiguous().clone() for v in tensors
    ]
