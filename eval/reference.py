"""The reference worker: runs the problem's own module, and nothing of a candidate.

Role of a forked child (`serve`). It makes draws of inputs and parameters, answers timed calls (eager or
compiled) on the content that the judge has laid out, and computes the fp64 oracle. It never sees a candidate.
Parameters are views over the shared content, so a call always uses the current ones; buffers that the module
updates are private and restored before each call.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eval import codec
from eval.arena import attach
from eval.channel import Channel
from eval.content import Recipe, compose, rows_of
from eval.problem import load_module
from eval.records import FunctionalProblem, TensorArgument


def serve(channel: Channel) -> None:
    """Answer the judge's requests until it hangs up."""
    message, fds = channel.receive()
    try:
        reference = Reference(message, fds)
        channel.send(reference.describe())
    except Exception as error:
        channel.send({"raised": f"{type(error).__name__}: {error}"})
        return
    while True:
        message, fds = channel.receive()
        try:
            with torch.no_grad():
                reply = getattr(reference, message.pop("do"))(fds=fds, **message)
        except Exception as error:
            import traceback

            traceback.print_exc()
            reply = {"raised": f"{type(error).__name__}: {error}"}
        channel.send(reply)


class Reference:
    """One problem's module with its arguments bound to shared memory."""

    def __init__(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        self.fp: FunctionalProblem = codec.decode(message["problem"])
        self.device = torch.device(message["device"])
        torch.set_num_threads(message["threads"])
        strict_precision()
        self.content = attach(fds[0], message["content"], writable=False)
        self.outputs = attach(fds[1], message["outputs"], writable=True)
        self.oracle_outputs = attach(fds[2], message["oracle"], writable=True)
        self.draws: list[list[torch.Tensor]] = []
        module = load_module(self.fp.problem.name, self.fp.problem.source)
        with self.device:
            self.init_inputs = module.get_init_inputs()
            self.get_inputs = module.get_inputs
            torch.manual_seed(message["seed"])
            self.model = module.Model(*self.init_inputs).to(self.device)
            self.leaves, self.tree = pytree.tree_flatten(list(module.get_inputs()))
        self.model.requires_grad_(False)
        self.initial = {a.name: self._attribute(a.path).detach().clone() for a in self._held()}
        self.mutated = {path: self._attribute(path).detach().clone() for path in self.fp.mutated}
        self.on_device = on_device(self.content, self.device)
        self._bind()
        self.variants: dict[str, Any] = {"eager": self.model}
        self.last: Any = None

    def describe(self) -> dict[str, Any]:
        """What the judge asks once: plain constructor inputs, for `ModelNew` candidates."""
        flat = self.tree.num_leaves == len(self.leaves) and all(c.is_leaf() for c in self.tree.children())
        return {"init_inputs": _plain(self.init_inputs), "flat": flat, "leaves": [_plain_leaf(v) for v in self.leaves]}

    def _held(self) -> list[TensorArgument]:
        return [a for a in self.fp.tensors if a.role != "input"]

    def _attribute(self, path: str) -> torch.Tensor:
        value: Any = self.model
        for part in path.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{path} of the module is a {type(value).__name__}, not a tensor")
        return value

    def _bind(self) -> None:
        """Let the module's tensors and the input leaves be views of the content."""
        for argument, tensor in zip(self.fp.tensors, self.on_device, strict=True):
            if argument.role == "input":
                self.leaves[int(argument.path)] = tensor
            elif argument.path not in self.mutated:
                self._attribute(argument.path).data = tensor

    def _restore(self) -> None:
        """Put updated buffers back to what the content says (or to what they were)."""
        content = {a.path: t for a, t in zip(self.fp.tensors, self.on_device, strict=True)}
        for path, initial in self.mutated.items():
            self._attribute(path).copy_(content.get(path, initial))

    def draw(self, *, seed: int, kind: str, layout: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Write one draw of all tensor arguments into the arena. `kind` is `own` or `normal` (zero-mean inputs)."""
        target = attach(fds[0], layout, writable=True)
        torch.manual_seed(seed)
        with self.device:
            leaves = pytree.tree_leaves(list(self.get_inputs()))
        generator = torch.Generator(self.device).manual_seed(seed ^ 0x5EED)
        for argument, tensor in zip(self.fp.tensors, target, strict=True):
            if argument.role == "input":
                value = leaves[int(argument.path)].to(self.device)
                if kind == "normal" and value.is_floating_point() and value.dim() > 0:
                    value = torch.randn(value.shape, generator=generator, device=self.device).to(value.dtype)
            else:
                value = self.initial[argument.name]
                value = _vary(value, generator) if argument.role == "parameter" else value
            tensor.copy_(value)
        if self.device.type != "cpu":
            self.draws.append([t.to(self.device).reshape(-1).view(torch.uint8) for t in target])
        return {"done": True}

    def load(self, *, recipe: Any, fds: Sequence[int]) -> dict[str, Any]:
        """GPU only: make the content of the next call on the device, from the draws held there."""
        load_on_device(self.on_device, self.draws, codec.decode(recipe), self.fp)
        return {"done": True}

    def prepare(self, *, variant: str, fds: Sequence[int]) -> dict[str, Any]:
        """Make a variant callable: `compile` compiles on the current content and runs once."""
        if variant == "compile" and "compile" not in self.variants:
            self.variants["compile"] = torch.compile(self.model)
        self.ready(fds=fds)
        self.call(variant=variant, fds=fds)
        return {"done": True}

    def ready(self, *, fds: Sequence[int]) -> dict[str, Any]:
        """Before a call, outside the clock."""
        self._restore()
        self.last = None
        self._synchronize()
        return {"done": True}

    def call(self, *, variant: str, fds: Sequence[int]) -> dict[str, Any]:
        """The timed call."""
        self.last = self.variants[variant](*pytree.tree_unflatten(self.leaves, self.tree))
        self._synchronize()
        return {"done": True}

    def oracle(self, *, fds: Sequence[int]) -> dict[str, Any]:
        """Write the module's outputs, and the fp64 ones, for the current content."""
        self._restore()
        inputs = pytree.tree_unflatten(self.leaves, self.tree)
        results = _tensors(self.model(*inputs))
        _store(results, self.outputs)
        with contextlib.suppress(RuntimeError, TypeError, ValueError), _double_factories():
            exact = _tensors(torch.func.functional_call(self.model, self._doubled_state(), tuple(_doubled(inputs))))
            if [tuple(t.shape) for t in exact] == [tuple(t.shape) for t in results]:
                _store(exact, self.oracle_outputs)
                return {"oracle": "fp64"}
        _store(results, self.oracle_outputs)
        return {"oracle": "own dtype"}

    def _doubled_state(self) -> dict[str, torch.Tensor]:
        state = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self._restore()
        return {name: t.double() if t.is_floating_point() else t.clone() for name, t in state.items()}

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def strict_precision() -> None:
    """fp32 means fp32 on both sides: no TF32 in matmuls or convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def on_device(content: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The tensors that calls use: the shared memory itself on a CPU, buffers of the same form on a GPU."""
    return content if device.type == "cpu" else [torch.empty_like(t, device=device) for t in content]


def load_on_device(
    target: Sequence[torch.Tensor], draws: Sequence[Sequence[torch.Tensor]], recipe: Recipe, fp: FunctionalProblem
) -> None:
    """Compose every tensor's content on the GPU."""
    for index, (tensor, part) in enumerate(zip(target, recipe, strict=True)):
        rows, _ = rows_of(fp.tensors[index].spec)
        compose(tensor.reshape(-1).view(torch.uint8), [draw[index] for draw in draws], part, rows)
    torch.cuda.synchronize()


@contextlib.contextmanager
def _double_factories() -> Iterator[None]:
    """Tensors that the forward itself makes are fp64 too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _doubled(inputs: Any) -> Any:
    return pytree.tree_map(lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v, inputs)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _store(results: Sequence[torch.Tensor], target: Sequence[torch.Tensor]) -> None:
    if len(results) != len(target):
        raise ValueError(f"the module returned {len(results)} tensors where {len(target)} were traced")
    for value, place in zip(results, target, strict=True):
        if tuple(value.shape) != tuple(place.shape):
            raise ValueError(f"the module returned shape {tuple(value.shape)} where {tuple(place.shape)} was traced")
        place.copy_(value)


def _vary(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A parameter's next draw: constants (zero biases, unit scales) are moved, the others are rotated."""
    if not value.is_floating_point() or value.numel() == 0:
        return value
    if bool((value == value.reshape(-1)[0]).all()):
        noise = torch.rand(value.shape, generator=generator, device=value.device) * 0.6 - 0.3
        return value + noise.to(value.dtype)
    offset = int(torch.randint(1, max(2, value.numel()), (1,), generator=generator, device=value.device))
    return torch.roll(value.reshape(-1), offset).reshape(value.shape)


def _plain(value: Any) -> Any:
    """JSON form of constructor inputs; anything else becomes a description that no constructor accepts."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | str | None) else {"unsupported": type(value).__name__}


def _plain_leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"tensor": list(value.shape)}
    return value if not isinstance(value, float) or math.isfinite(value) else {"unsupported": str(value)}


