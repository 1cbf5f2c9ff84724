"""A verified kernel as a torch operator, `torch.ops.rag_kernels.NAME`: what compilers of graphs can record.

Comes in: the kernel and the call that it was verified for. Goes out: the operator, with its schema, its fake form (shapes
without data) and its gradients: those of the functional form, computed again by an operator of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

SCALARS = {"int": "int", "float": "float", "bool": "bool"}


class Verified(Protocol):
    """What is needed of a `CompiledForward`."""

    @property
    def name(self) -> str: ...
    @property
    def functional(self) -> str: ...
    @property
    def arguments(self) -> Sequence[tuple[str, str, tuple[int, ...], str]]: ...
    @property
    def constants(self) -> dict[str, Any]: ...
    @property
    def outputs(self) -> Sequence[tuple[tuple[int, ...], str]]: ...
    @property
    def backend(self) -> str: ...

    def run(self, values: Sequence[Any]) -> Any: ...


def operator_of(kernel: Verified) -> Callable[..., Any]:
    """Register the operator and the one of its gradients, and return it."""
    import torch

    kinds = ["Tensor" if role != "scalar" else SCALARS[dtype] for role, _, _, dtype in kernel.arguments]
    given = ", ".join(f"{kind} a{i}" for i, kind in enumerate(kinds))
    many = len(kernel.outputs)
    result = "Tensor" if many == 1 else f"({', '.join(['Tensor'] * many)})"
    tensors = [i for i, kind in enumerate(kinds) if kind == "Tensor"]

    def forward(*values: Any) -> Any:
        shape_check(kernel, values)
        return fresh(kernel.run(values), values)

    def fake(*values: Any) -> Any:
        shape_check(kernel, values)
        device = values[tensors[0]].device
        made = [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for shape, dtype in kernel.outputs]
        return made[0] if many == 1 else tuple(made)

    def gradients(grads: Sequence[torch.Tensor], *values: Any) -> list[torch.Tensor]:
        return functional_gradients(kernel.functional, grads, values)

    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        saved = list(ctx.saved_tensors)
        values = [saved.pop(0) if kind == "Tensor" else value for kind, value in zip(kinds, ctx.scalars, strict=True)]
        found = gradient_op([g.contiguous() for g in grads], *values)
        by_place = dict(zip(tensors, found, strict=True))
        wanted = [i in by_place and ctx.needs_input_grad[i] for i in range(len(kinds))]
        return tuple(by_place[i] if want else None for i, want in enumerate(wanted))

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(inputs[i] for i in tensors))
        ctx.scalars = [None if kind == "Tensor" else value for kind, value in zip(kinds, inputs, strict=True)]

    def fake_gradients(grads: Sequence[torch.Tensor], *values: Any) -> list[torch.Tensor]:
        return [torch.empty_like(values[i], memory_format=torch.contiguous_format) for i in tensors]

    custom_op = torch.library.custom_op
    device = kernel.backend
    name = f"rag_kernels::{kernel.name}"
    op = custom_op(name, forward, mutates_args=(), device_types=device, schema=f"({given}) -> {result}")
    op.register_fake(fake)
    schema = f"(Tensor[] grads, {given}) -> Tensor[]"
    gradient_op = custom_op(f"{name}_backward", gradients, mutates_args=(), device_types=device, schema=schema)
    gradient_op.register_fake(fake_gradients)
    op.register_autograd(backward, setup_context=setup)
    return op


def shape_check(kernel: Verified, values: Sequence[Any]) -> None:
    """Raise ValueError for tensors of other sizes or types than the kernel was verified for."""
    for (role, path, shape, dtype), value in zip(kernel.arguments, values, strict=True):
        if role == "scalar":
            continue
        has = (tuple(value.shape), str(value.dtype).removeprefix("torch."))
        if has != (tuple(shape), dtype):
            raise ValueError(f"The operator was verified for {dtype}{list(shape)} at {path}, and got {has[1]}{list(has[0])}.")


def fresh(result: Any, values: Sequence[Any]) -> Any:
    """Return results that share no memory with the arguments: a composed forward may return a view of one."""
    import torch

    held = {v.untyped_storage().data_ptr() for v in values if isinstance(v, torch.Tensor)}

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if tensor.untyped_storage().data_ptr() in held else tensor.contiguous()

    return own(result) if isinstance(result, torch.Tensor) else tuple(map(own, result))


def functional_gradients(source: str, grads: Sequence[torch.Tensor], values: Sequence[Any]) -> list[torch.Tensor]:
    """Return the gradient of every tensor argument (zeros where there is none), by the functional form."""
    import torch

    names: dict[str, Any] = {}
    exec(compile(source, "<functional>", "exec"), names)
    leaves = [
        v.detach().requires_grad_(v.dtype.is_floating_point) if isinstance(v, torch.Tensor) else v for v in values
    ]
    with torch.enable_grad():
        made = names["module_fn"](*leaves)
    outputs = [made] if isinstance(made, torch.Tensor) else list(made)
    flows = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
    wanted = [v for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad]
    found = torch.autograd.grad([o for o, _ in flows], wanted, [g for _, g in flows], allow_unused=True)
    by_leaf = {id(v): g for v, g in zip(wanted, found, strict=True)}
    tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
    return [torch.zeros_like(v.detach()) if (g := by_leaf.get(id(v))) is None else g.contiguous().clone() for v in tensors]
