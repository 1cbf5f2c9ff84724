"""The reference worker: runs the problem's own module, and nothing of a candidate.

Role of a forked child (`serve`). It makes draws of inputs and parameters, answers timed calls (eager or
compiled) on the content that the judge has laid out, computes the fp64 oracle, and compares outputs with it: bytes
that the judge has copied. It never sees a candidate.
Parameters are views over the shared content, so a call always uses the current ones; buffers that the module
updates are private and restored before each call.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eval import codec
from eval.arena import attach
from eval.channel import Channel
from eval.content import Recipe, compose, rows_of
from eval.numerics import compare
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


@dataclass(frozen=True, slots=True)
class Answer:
    """The module's own outputs and the oracle's, on the device; `kind` is `fp64` or `own dtype`."""

    reference: list[torch.Tensor]
    oracle: list[torch.Tensor]
    kind: str


class Reference:
    """One problem's module with its arguments bound to shared memory."""

    def __init__(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        self.fp: FunctionalProblem = codec.decode(message["problem"])
        self.device = torch.device(message["device"])
        torch.set_num_threads(message["threads"])
        strict_precision()
        self.content = attach(fds[0], message["content"], writable=False)
        self.submitted = attach(fds[1], message["outputs"], writable=False)
        self.answers: dict[int, Answer] = {}
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

    def answer(self, *, key: int | None, fds: Sequence[int]) -> dict[str, Any]:
        """Compute what is right for the current content; with a key, remember it (whole draws come again)."""
        answer = self._compute()
        if key is not None:
            self.answers[key] = answer
        finite = all(bool(torch.isfinite(t).all()) for t in answer.oracle if t.is_floating_point())
        self._release()
        return {"kind": answer.kind, "finite": finite}

    def check(self, *, key: int | None, fds: Sequence[int]) -> dict[str, Any]:
        """Compare the submitted outputs with the remembered answer, or with one for the current content."""
        answer = self.answers[key] if key is not None else self._compute()
        results = [
            asdict(compare(got.to(self.device), reference, oracle))
            for got, reference, oracle in zip(self.submitted, answer.reference, answer.oracle, strict=True)
        ]
        self._release()
        return {"results": results}

    def varies(self, *, first: int, second: int, fds: Sequence[int]) -> dict[str, Any]:
        """Does the output depend on the draw, by more than 1 % of its largest value?"""
        for a, b in zip(self.answers[first].oracle, self.answers[second].oracle, strict=True):
            x, y = a.double(), b.double()
            if x.numel() and float((x - y).abs().max()) > 1e-2 * max(float(x.abs().max()), 1e-30):
                return {"varies": True}
        return {"varies": False}

    def _compute(self) -> Answer:
        self._restore()
        inputs = pytree.tree_unflatten(self.leaves, self.tree)
        results = _tensors(self.model(*inputs))
        _require_form(results, self.submitted)
        with contextlib.suppress(RuntimeError, TypeError, ValueError), _double_factories():
            exact = _tensors(torch.func.functional_call(self.model, self._doubled_state(), tuple(_doubled(inputs))))
            if [tuple(t.shape) for t in exact] == [tuple(t.shape) for t in results]:
                return Answer([t.clone() for t in results], [t.clone() for t in exact], "fp64")
        return Answer([t.clone() for t in results], [t.clone() for t in results], "own dtype")

    def _doubled_state(self) -> dict[str, torch.Tensor]:
        state = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self._restore()
        return {name: t.double() if t.is_floating_point() else t.clone() for name, t in state.items()}

    def _release(self) -> None:
        """Give the GPU memory of fp64 temporaries back: the candidate's worker needs room too."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

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


def _require_form(results: Sequence[torch.Tensor], traced: Sequence[torch.Tensor]) -> None:
    got = [(tuple(t.shape), t.dtype) for t in results]
    expected = [(tuple(t.shape), t.dtype) for t in traced]
    if got != expected:
        raise ValueError(f"the module returned {got} where {expected} was traced")


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


