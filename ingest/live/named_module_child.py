"""The part of `ingest.live.named_module` that runs the user's file: only ever in a child process.

Comes in: a payload with the file, the name, and the texts of arguments. Goes out: a problem's text, or a reason.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from rag_kernels.eval.records import ProblemError
from rag_kernels.ingest.live.called_module import Call, problem_of_calls
from rag_kernels.ingest.live.live_module import without_gradient


def problem_here(payload: Mapping[str, str]) -> dict[str, Any]:
    """Return `{"source": text, "fixed": numbers}` of the problem, or `{"reason": sentence}`."""
    file, name = Path(payload["file"]), payload["name"]
    torch.manual_seed(0)
    try:
        scope = imported(file)
        module = built(scope, file, name, payload["init"])
        args, kwargs = arguments(scope, payload["inputs"], "--inputs")
        call = Call(args, kwargs)
        return {"source": problem_of_calls(module, [call], name).source, "fixed": without_gradient(call.tensors())}
    except ProblemError as error:
        return {"reason": str(error)}


def imported(file: Path) -> ModuleType:
    """Return the file as a module, with its folder first among those that it imports from."""
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise ProblemError(f"{file} cannot be imported: {type(error).__name__}: {error}.") from error
    return module


def built(scope: ModuleType, file: Path, name: str, init: str) -> torch.nn.Module:
    """Return the module that the name means, in eval mode: an instance, or what a class or function returns."""
    found = getattr(scope, name, None)
    if found is None:
        known = [n for n, v in vars(scope).items() if isinstance(v, type) and issubclass(v, torch.nn.Module)]
        raise ProblemError(f"{file} has no {name!r}; its modules are {', '.join(known) or 'none'}.")
    if not isinstance(found, torch.nn.Module):
        args, kwargs = arguments(scope, init, "--init")
        try:
            found = found(*args, **kwargs)
        except Exception as error:  # whatever the user's constructor raises
            raise ProblemError(
                f'{name} cannot be made: {type(error).__name__}: {error}; --init "512, heads=8" has its arguments.'
            ) from error
    if not isinstance(found, torch.nn.Module):
        raise ProblemError(f"{name} is a {type(found).__name__} and no torch.nn.Module.")
    return found.eval()


def arguments(scope: ModuleType, text: str, option: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call as they are written, with the file's own names and torch."""
    try:
        call = ast.parse(f"_({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        names = {"torch": torch, **vars(scope)}
        args = tuple(eval(ast.unparse(a), names) for a in call.args)
        return args, {str(k.arg): eval(ast.unparse(k.value), names) for k in call.keywords if k.arg}
    except Exception as error:  # whatever the user's text raises
        raise ProblemError(f"{option} {text!r} cannot be read: {type(error).__name__}: {error}.") from error
