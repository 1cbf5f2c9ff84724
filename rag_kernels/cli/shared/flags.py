"""The flags of a search, which several commands have in common: listed once, in the order of the help.

Comes in: a command with a parameter `options`. Goes out: the same command with these flags in its place.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rag_kernels.cli.shared.common import (
    ApiBase,
    ArchivePlace,
    BudgetSeconds,
    BudgetTokens,
    BudgetUsd,
    Cluster,
    DeviceChoice,
    Drafts,
    Effort,
    Examples,
    Hint,
    JudgeCpus,
    LeaveOut,
    MaxAutotune,
    Model,
    Precision,
    ReasoningEffort,
    ReplySeconds,
    Retrieval,
    Rounds,
    Seed,
    Temperature,
    read_options,
)

if TYPE_CHECKING:
    from rag_kernels.options import Options


def search_options(
    model: Model = None,
    device: DeviceChoice = None,
    hint: Hint = "",
    effort: Effort = None,
    rounds: Rounds = None,
    drafts: Drafts = None,
    temperature: Temperature = None,
    reasoning_effort: ReasoningEffort = None,
    reply_seconds: ReplySeconds = 600.0,
    examples: Examples = None,
    retrieval: Retrieval = None,
    leave_out: LeaveOut = "nothing",
    precision: Precision = "strict",
    max_autotune: MaxAutotune = False,
    budget_usd: BudgetUsd = None,
    budget_seconds: BudgetSeconds = None,
    budget_tokens: BudgetTokens = None,
    archive: ArchivePlace = None,
    seed: Seed = 0,
    api_base: ApiBase = None,
    cluster: Cluster = "",
    judge_cpus: JudgeCpus = 0,
) -> Options:
    return read_options(
        models=model,
        device=device,
        hint=hint,
        effort=effort,
        rounds=rounds,
        examples=examples,
        retrieval=retrieval,
        leave_out=leave_out,
        budget_usd=budget_usd,
        budget_seconds=budget_seconds,
        budget_tokens=budget_tokens,
        archive=archive,
        seed=seed,
        api_base=api_base,
        precision=precision,
        max_autotune=max_autotune,
        drafts=drafts,
        temperatures=temperature,
        reasoning_effort=reasoning_effort,
        reply_seconds=reply_seconds,
        cluster=cluster,
        judge_cpus=judge_cpus,
    )


def with_search_flags(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of `search_options`, but for some, in place of its parameter `options`."""
    return lambda command: _with_flags(command, left_out)


def _with_flags(command: Callable[..., None], left_out: Sequence[str]) -> Callable[..., None]:
    """Give a command the flags by its signature, which typer reads."""
    flags = [flag for flag in _parameters(search_options) if flag.name not in left_out]
    shown: list[inspect.Parameter] = []
    for parameter in _parameters(command):
        shown += flags if parameter.name == "options" else [parameter]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = search_options(**{flag.name: given.pop(flag.name) for flag in flags})
        command(options=options, **given)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    del run.__wrapped__  # whose annotations are not these
    return run


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return parameters with annotations as objects, but for names that are only known to type checkers."""
    names = vars(sys.modules[function.__module__])
    found = inspect.signature(function).parameters.values()
    return [p if p.name == "options" else p.replace(annotation=eval(p.annotation, names)) for p in found]
