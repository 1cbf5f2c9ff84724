"""A folder of your own: problems `NAME.py` in KernelBench form, and beside each its kernels.

Comes in: the folder; kernels are `NAME.cu` or `NAME.cpp`, several `NAME.VARIANT.cu`. Goes out: an `Imported` for each
kernel, and for each problem without one. `kernels.toml`, if it is there, says what is known of them: at its head
`licence`, `attribution`, `device` and `notes`, and in a table with the name of a file its `idea`, `model`, `kernel_us`,
`eager_us`, `compile_us`, `notes`, and whether it is `correct`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rag_kernels.archive.records import Claim, Imported
from rag_kernels.eval.records import Backend, Candidate
from rag_kernels.ingest.importers.protocol import (
    ImportRefused,
    Read,
    Skipped,
    known_problem,
    number,
    python_files,
    read_text,
    stated,
)

BACKENDS: dict[str, Backend] = {".cu": "cuda", ".cpp": "cpu"}
FACTS = "kernels.toml"
HEAD = frozenset({"licence", "attribution", "device", "notes"})
KNOWN = frozenset({"idea", "model", "kernel_us", "eager_us", "compile_us", "notes", "correct"})


@dataclass(frozen=True, slots=True)
class KernelFolder:
    """Read problems and kernels that lie side by side. `licence` and `attribution` are for those that state none."""

    licence: str = ""
    attribution: str = ""

    def read(self, path: Path) -> Iterator[Read]:
        files = sorted(file for file in path.glob("*") if file.suffix in BACKENDS) if path.is_dir() else []
        if not files:
            raise ImportRefused(f"{path} holds no kernel: put NAME.cu or NAME.cpp beside its problem NAME.py.")
        facts = _facts(path / FACTS)
        missing = sorted(facts.keys() - {"", *(file.name for file in files)})
        yield from (Skipped(FACTS, f"there is no file {name}") for name in missing)
        owners: set[str] = set()
        for file in files:
            owners.add(file.name.split(".")[0])
            try:
                yield self._kernel(file, facts.get(file.name, {}), facts.get("", {}))
            except ValueError as error:
                yield Skipped(file.name, str(error))
        for file in python_files(path):
            if file.stem not in owners:
                yield self._problem(file, facts.get("", {}))

    def _problem(self, file: Path, head: dict[str, Any]) -> Read:
        problem = known_problem(file.stem, read_text(file))
        if isinstance(problem, str):
            return Skipped(file.name, problem)
        return Imported(stated(problem, ""), None, self._claim(file, {}, head))

    def _kernel(self, file: Path, told: dict[str, Any], head: dict[str, Any]) -> Imported:
        owner = file.with_name(file.name.split(".")[0] + ".py")
        if not owner.is_file():
            raise ValueError(f"its problem {owner.name} is not beside it")
        problem = known_problem(owner.stem, read_text(owner))
        if isinstance(problem, str):
            raise ValueError(f"{owner.name}: {problem}")
        source = read_text(file)
        if "RK_EXPORT(forward" not in source:
            raise ValueError("it does not export `forward` by RK_EXPORT")
        candidate = Candidate(source, "kernel", BACKENDS[file.suffix])
        claim = self._claim(file, told, head)
        return Imported(stated(problem, ""), candidate, claim, told.get("idea", ""), told.get("model", ""))

    def _claim(self, file: Path, told: dict[str, Any], head: dict[str, Any]) -> Claim:
        kernel, eager, compiled = (number(told.get(f"{name}_us")) for name in ("kernel", "eager", "compile"))
        claim = Claim(
            importer="folder",
            origin=file.name,
            licence=head.get("licence", self.licence),
            attribution=head.get("attribution", self.attribution),
            correct=told.get("correct"),
            notes=(*head.get("notes", ()), *told.get("notes", ())),
        )
        if not kernel:
            return claim
        return replace(
            claim,
            device_name=head.get("device", ""),
            candidate_us=kernel,
            eager_us=eager,
            compile_us=compiled,
            speedup_eager=eager / kernel if eager else None,
            speedup_compile=compiled / kernel if compiled else None,
        )


def _facts(file: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of each kernel by the name of its file, and under the empty name of all of them."""
    if not file.is_file():
        return {}
    try:
        found = tomllib.loads(read_text(file))
    except ValueError as error:
        raise ImportRefused(f"{file} is not TOML: {error}") from error
    tables = {name: value for name, value in found.items() if isinstance(value, dict)}
    head = {name: value for name, value in found.items() if name not in tables}
    unknown = sorted({*head} - HEAD) + sorted({name for table in tables.values() for name in table} - KNOWN)
    if unknown:
        raise ImportRefused(f"{file} has {unknown[0]!r}, which is none of {', '.join(sorted(HEAD | KNOWN))}.")
    return {**tables, "": head}
