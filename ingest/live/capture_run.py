"""Run a user's program and record how one of its modules is called: `python -m` this, in a process of its own.

Comes in: the pattern of a module's class or place, and a script with its arguments. Goes out: a problem's text and a
report as JSON, in the file that is named first. The program runs as it would by itself, with its own output.
"""

from __future__ import annotations

import fnmatch
import json
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rag_kernels.eval.records import ProblemError
from rag_kernels.ingest.live.called_module import Call, problem_of_calls

MOST = 64  # ways of calling that are kept of one module; further ones are counted


@dataclass(slots=True)
class Seen:
    """A module that was called: the places where it or its like stand, and its calls by what they look like."""

    module: torch.nn.Module
    places: set[str] = field(default_factory=set)
    calls: dict[str, Call] = field(default_factory=dict)
    further: int = 0
    trained: int = 0  # calls of a module in training mode of which a gradient can be wanted
    autocast: set[str] = field(default_factory=set)  # the types that autocast had at its calls

    @property
    def count(self) -> int:
        return sum(call.count for call in self.calls.values()) + self.further


@dataclass(slots=True)
class Recorder:
    """What is recorded while the program runs; modules with the same class and shapes of parameters are one."""

    pattern: str
    seen: dict[str, Seen] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)  # of the modules below one that is called from outside
    classes: set[str] = field(default_factory=set)
    depth: int = 0

    def note(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record one call, if the module is one of those that are looked for."""
        if self.depth == 1:
            self.places = {id(m): place for place, m in module.named_modules()}
        kind, place = type(module).__name__, self.places.get(id(module), "")
        self.classes.add(kind)
        if not any(fnmatch.fnmatchcase(name, self.pattern) for name in (kind, place)):
            return
        shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in module.named_parameters()]
        seen = self.seen.setdefault(f"{kind} {shapes}", Seen(module))
        seen.places.add(place)
        call = Call(args, kwargs)
        seen.trained += module.training and torch.is_grad_enabled() and gradient_wanted(module, call)
        for device in {tensor.device.type for tensor in call.tensors()}:
            if torch.is_autocast_enabled(device):
                seen.autocast.add(str(torch.get_autocast_dtype(device)).removeprefix("torch."))
        key = f"{call.kind()} {[tuple(x.shape) for x in call.tensors()]}"
        if key in seen.calls:
            seen.calls[key].count += 1
        elif len(seen.calls) < MOST:
            copied = torch.utils._pytree.tree_map_only(torch.Tensor, copy_of, (args, kwargs))
            seen.calls[key] = Call(*copied)
        else:
            seen.further += 1

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `nn.Module.__call__` with recording before it."""

        def recorded(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            try:
                if not torch.compiler.is_compiling():
                    self.note(module, args, kwargs)
                return call(module, *args, **kwargs)
            finally:
                self.depth -= 1

        return recorded


def gradient_wanted(module: torch.nn.Module, call: Call) -> bool:
    """Return whether a parameter or an input wants a gradient."""
    return any(value.requires_grad for values in (module.parameters(), call.tensors()) for value in values)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same content and layout in memory, apart from the program's."""
    return tensor.detach().clone(memory_format=torch.preserve_format)


def main(out: str, pattern: str, script: str, *arguments: str) -> int:
    """Run the script, write what was recorded, and return the script's exit code."""
    recorder, code, plain = Recorder(pattern), 0, torch.nn.Module.__call__
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    torch.nn.Module.__call__ = recorder.wrapped(plain)  # type: ignore[method-assign]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:  # how a server ends: what was recorded until then is what is wanted
        code = 0
    except Exception:  # whatever the program raises: it tells so itself, and what came before was recorded
        traceback.print_exc()
        code = 1
    finally:
        torch.nn.Module.__call__ = plain  # type: ignore[method-assign]
    Path(out).write_text(json.dumps(told(recorder)))
    return code


def told(recorder: Recorder) -> dict[str, Any]:
    """Return the problem of the module that was called most, with a row for every module, as plain data."""
    ranked = sorted(recorder.seen.values(), key=lambda seen: -seen.count)
    rows = [
        {
            "class": type(seen.module).__name__,
            "places": sorted(seen.places - {""}),
            "calls": seen.count,
            "ways": len(seen.calls),
        }
        for seen in ranked
    ]
    if not ranked:
        known = ", ".join(sorted(recorder.classes)) or "no module at all"
        return {"reason": f"The program called nothing that is named {recorder.pattern!r}; it called {known}."}
    name = type(ranked[0].module).__name__
    try:
        made = problem_of_calls(ranked[0].module, list(ranked[0].calls.values()), name)
    except ProblemError as error:
        return {"reason": str(error), "modules": rows}
    notes = list(made.notes)
    if ranked[0].further:
        notes.append(f"{ranked[0].further} calls of further shapes are left out")
    if ranked[0].autocast:
        kinds = " and ".join(sorted(ranked[0].autocast))
        notes.append(
            f"autocast ({kinds}) was on, and the file computes in the types of its tensors, as kernels are used where "
            "autocast is off: run the program with the module and its inputs in the type that it is to compute in"
        )
    return {"name": name, "source": made.source, "notes": notes, "modules": rows, "trained": ranked[0].trained > 0}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
