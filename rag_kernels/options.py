"""The options of a session: one record, made by the CLI from flags and environment, or by a Python caller.

Knows nothing of where its values come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Integral
from types import NoneType
from typing import Any, TypedDict, get_args, get_origin, get_type_hints

from rag_kernels.choices import DeviceChoice, LeaveOut, Precision, ReasoningEffort, RetrievalMode
from rag_kernels.eval.errors import RagKernelsError
from rag_kernels.records import Budget

EFFORTS = range(1, 10)
HOTTEST = 2.0  # of a temperature


class OptionError(ValueError, RagKernelsError):
    """An option has a value that it cannot have; the message says which values it can."""


class Keywords(TypedDict, total=False):
    """The fields of `Options` as keywords of the Python functions; `archive` is an argument of its own there."""

    models: Sequence[str] | str
    api_base: str
    device: DeviceChoice
    effort: int
    rounds: int | None
    drafts: int | None
    examples: int | None
    retrieval: RetrievalMode
    leave_out: LeaveOut
    hint: str
    temperatures: Sequence[float]
    reasoning_effort: ReasoningEffort | None
    reply_seconds: float
    budget_seconds: float | None
    budget_tokens: int | None
    budget_usd: float | None
    precision: Precision
    max_autotune: bool
    seed: int
    embedder: str
    cache: str
    cluster: str
    judge_cpus: int


@dataclass(frozen=True, slots=True)
class Options:
    """Configure a session. `effort` is the one dial; `rounds`, `drafts` and `examples` override what follows from
    it. Raises OptionError for a value that an option cannot have.
    """

    models: tuple[str, ...] = ()  # empty: the offline writer
    api_base: str = ""
    device: DeviceChoice = "auto"
    archive: str = ""  # a folder, ":memory:", or "" for the default place
    effort: int = 2
    rounds: int | None = None
    drafts: int | None = None
    examples: int | None = None
    retrieval: RetrievalMode = "hybrid"
    leave_out: LeaveOut = "nothing"  # what retrieval hides, to measure what it is worth
    hint: str = ""
    temperatures: tuple[float, ...] = ()  # go round the branches; none: as the provider has it
    reasoning_effort: ReasoningEffort | None = None
    reply_seconds: float = 600.0  # for one whole reply of a model
    budget_seconds: float | None = None
    budget_tokens: int | None = None
    budget_usd: float | None = None
    precision: Precision = "strict"  # or lower in matrix products, for the kernel and PyTorch alike
    max_autotune: bool = False  # torch.compile(mode="max-autotune") is a baseline too
    seed: int = 0
    embedder: str = "builtin"  # or a sentence-transformers model by name or path
    cache: str = ""  # empty: the default place
    cluster: str = ""  # judges on this Ray cluster; empty: here
    judge_cpus: int = 0  # cores of a judge there; 0: an equal share for each GPU of a host, or all

    def __post_init__(self) -> None:
        if isinstance(self.models, str):
            object.__setattr__(self, "models", (self.models,) if self.models else ())
        for name in ("models", "temperatures"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        for name, words in CHOICES.items():
            value = getattr(self, name)
            if value not in words and not (name == "reasoning_effort" and value is None):
                raise OptionError(f"{name}={value!r} is not known: it is one of {', '.join(map(repr, words))}.")
        for name, hint in get_type_hints(Options).items():
            if name not in CHOICES and not _is(getattr(self, name), hint):
                raise OptionError(f"{name}={getattr(self, name)!r} is not {_told(hint)}.")
        if self.effort not in EFFORTS:
            raise OptionError(f"effort={self.effort!r} is out of range: it is from 1 to 9.")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:  # NaN is not, either
                raise OptionError(f"{name}={value!r} is out of range: it is {least} or more.")
        if not all(0 <= temperature <= HOTTEST for temperature in self.temperatures):
            raise OptionError(f"temperatures={self.temperatures!r} are out of range: each is from 0 to 2.")

    @property
    def budget(self) -> Budget:
        return Budget(self.rounds or self.effort, self.budget_seconds, self.budget_tokens, self.budget_usd)

    @property
    def width(self) -> int:
        """Return the drafts in a round at most, and with a model the requests under way at once."""
        return self.drafts or 2 * self.effort

    @property
    def exemplar_count(self) -> int:
        return self.effort + 1 if self.examples is None else self.examples


CHOICES = {
    "device": get_args(DeviceChoice),
    "retrieval": get_args(RetrievalMode),
    "leave_out": get_args(LeaveOut),
    "precision": get_args(Precision),
    "reasoning_effort": get_args(ReasoningEffort),
}
LEAST = {
    "rounds": 1,
    "drafts": 1,
    "examples": 0,
    "reply_seconds": 1,
    "budget_seconds": 0,
    "budget_tokens": 0,
    "budget_usd": 0,
    "judge_cpus": 0,
}


WORDS = {str: "a string", int: "a whole number", float: "a number", bool: "True or False", NoneType: "None"}


def _is(value: object, hint: Any) -> bool:
    """Return whether a value is of a field's type; a bool is no number, and every whole number is a number."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is(item, get_args(hint)[0]) for item in value)
    kinds: tuple[type, ...] = get_args(hint) or (hint,)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (isinstance(value, Integral) and float in kinds)


def _told(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"a sequence, each of it {_told(get_args(hint)[0])}"
    return " or ".join(WORDS[kind] for kind in get_args(hint) or (hint,))


def options_of(keywords: Keywords, archive: str = "") -> Options:
    """Return the options that keywords stand for; raises OptionError for an unknown one, or a wrong value."""
    given: dict[str, Any] = dict(keywords)
    known = [field.name for field in fields(Options)]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise OptionError(f"There is no option {name!r}{f'; did you mean {near[0]!r}?' if near else '.'}")
    return Options(archive=archive, **given)
