"""One candidate through KernelBench's own evaluator, in a process of its own.

    python tests/bench/kernelbench_child.py REQUEST.json ANSWER.json

Comes in: paths, texts and counts. Goes out: its result and the seconds of each stage. Its functions are called as its
scripts call them; they are only wrapped with a clock. Packages that its modules import and that play no part in an
evaluation are stubbed: dotenv, litellm and openai always (they take seconds and ask the network), pydantic (BaseModel
becomes a plain class), requests, tomli and tqdm where they are missing.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


class BaseModel:
    """What `pydantic.BaseModel` does for KernelBench's one result class: fields with defaults."""

    def __init__(self, **given: Any) -> None:
        for name in type(self).__annotations__:
            setattr(self, name, given[name] if name in given else copy.copy(getattr(type(self), name)))


STUBS: dict[str, dict[str, Any]] = {
    "dotenv": {"load_dotenv": lambda *a, **k: None},
    "litellm": {"completion": None},
    "openai": {"OpenAI": None},
    "pydantic": {"BaseModel": BaseModel},
    "requests": {},
    "tomli": {},
    "tqdm": {"tqdm": lambda items=(), *a, **k: items},
}


ALWAYS = {"dotenv", "litellm", "openai"}


def stub() -> list[str]:
    stubbed = [name for name in STUBS if name in ALWAYS or importlib.util.find_spec(name) is None]
    for name in stubbed:
        module = types.ModuleType(name)
        vars(module).update(STUBS[name])
        sys.modules[name] = module
    return stubbed


def clocked(seconds: dict[str, float], stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - started

    return run


def evaluate(module: Any, request: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    import torch

    module.load_custom_model = clocked(seconds, "compile", module.load_custom_model)
    module.run_and_check_correctness = clocked(seconds, "check", module.run_and_check_correctness)
    get = module.timing.get_timing_function
    module.timing.get_timing_function = lambda *a, **k: clocked(seconds, "time", get(*a, **k))
    result = module.eval_kernel_against_ref(
        request["problem"],
        request["model_new"],
        num_correct_trials=request["correct_trials"],
        num_perf_trials=request["perf_trials"],
        measure_performance=True,
        build_dir=request["build"],
        device=torch.device("cuda:0"),
        backend="cuda",
        precision=torch.float32,
    )
    if result is None:
        return {"verdict": "lock file error", "accepted": False}
    names = ("compilation_error", "runtime_error", "correctness_issue", "error_during_performance", "excessive_speedup")
    reasons = {name: str(result.metadata[name])[:300] for name in names if name in result.metadata}
    accepted = bool(result.compiled and result.correctness)
    bad = "build_failed" if not result.compiled else "crashed" if "runtime_error" in reasons else "wrong"
    verdict = "passed" if accepted else bad
    return {
        "verdict": verdict,
        "accepted": accepted,
        "reasons": reasons,
        "runtime_ms": result.runtime,
        "eager_ms": result.ref_runtime,
    }


def main() -> None:
    started = time.perf_counter()
    request = json.loads(Path(sys.argv[1]).read_text())
    sys.path.insert(0, str(Path(request["kernelbench"]) / "src"))
    answer: dict[str, Any] = {"stubbed": stub()}
    from kernelbench import eval as module  # type: ignore[import-not-found]
    from kernelbench import utils

    utils.set_gpu_arch([request["arch"]])
    seconds = {"import": time.perf_counter() - started}
    if request["mode"] == "compile":
        compile_it = clocked(seconds, "compile", module.build_compile_cache)
        answer["compiled"] = bool(compile_it(request["model_new"], build_dir=request["build"])[0])
    else:
        answer |= evaluate(module, request, seconds)
    answer["stages"] = seconds
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
