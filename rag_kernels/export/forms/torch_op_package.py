"""The format `torch-op`: a Python package with the kernel as a torch operator, its library, source and evidence.

Comes in: an attempt and a folder. Goes out: a package that imports nothing of ours: the check of calls, the launch and
the operator are files of it. `content_of` is what other formats put into packages of theirs.
"""

from __future__ import annotations

import json
import pprint
import re
from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Passed
from rag_kernels.export.card import Licence, card, card_json, card_text
from rag_kernels.export.forms.module_file import compiled_of, literal
from rag_kernels.export.forms.portable import NEEDS, headers, machine, portable_library
from rag_kernels.export.serving import guard, launch, served, torch_operator

LIBRARY = "kernel.so"
NEEDED = ("torch>=2.6", "apache-tvm-ffi>=0.1.9,<0.2")
INIT = '''\
"""{summary}

`{name}({given})` is the operator `torch.ops.{namespace}.{name}`. It refuses calls that were not verified.
"""

import torch
{imports}
from ._launch import Launch
from ._served import Argument, Output, Served
from ._torch_operator import operator_of

{needs}
FUNCTIONAL = {functional}

SERVED = Served(
    [Argument(*argument) for argument in {arguments}],
    [Output(*output) for output in {outputs}],
    {backend!r},
)

_launch = Launch(
    {name!r},
    SERVED,
    {constants},
    lambda: ops.forward,
    any_alignment={any_alignment},
    functional=FUNCTIONAL,
)
_operator = operator_of(_launch, __package__.rpartition(".")[2], {names})


def {name}({given}):
    return _operator({given})


__all__ = [{name!r}]
'''
LOADED = """\
from pathlib import Path

import tvm_ffi

ops = tvm_ffi.load_module(str(Path(__file__).with_name("kernel.so")))
"""
CHECK = """\
if torch.backends.cpu.get_cpu_capability() not in {needs}:
    raise ImportError("This kernel was built for CPUs with AVX2, and this one has none: build kernel{suffix} for it.")
"""
TEST = '''\
"""The operator as torch tests operators, on the sizes for which it was verified."""

import torch

import {package}


def test_the_operator():
    given = []
    for argument in {package}.SERVED.arguments:
        kind = getattr(torch, argument.dtype) if argument.role != "scalar" else None
        if kind is None:
            given.append(argument.shape)
        elif kind.is_floating_point:
            given.append(torch.rand(argument.shape, dtype=kind, device={package}.SERVED.backend))
        else:
            given.append(torch.ones(argument.shape, dtype=kind, device={package}.SERVED.backend))
    names = {{}}
    exec({package}.FUNCTIONAL, names)
    torch.testing.assert_close({package}.{name}(*given), names["module_fn"](*given))
    torch.library.opcheck({package}._operator, tuple(given))
'''
PYPROJECT = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{project}"
version = "1"
description = {summary!r}
requires-python = ">=3.10"
dependencies = {needed}

[tool.setuptools]
packages = ["{package}"]

[tool.setuptools.package-data]
"{package}" = ["*.so", "*.cpp", "*.cu", "*.h", "*.json", "*.md"]
"""


def write_torch_op(attempt: Attempt, out: Path, licence: Licence | None = None) -> Path:
    """Write the package into a new folder and return it; raises ProblemError for a kernel that cannot be one."""
    package = name_of(attempt)
    place = out / package
    files = {**content_of(attempt, "torch-op", LOADED, licence), LIBRARY: portable_library(attempt.candidate)}
    place.mkdir(parents=True)
    for name, content in files.items():
        (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    project, needed = package.replace("_", "-"), json.dumps(NEEDED)
    told = PYPROJECT.format(project=project, package=package, summary=summary_of(attempt), needed=needed)
    (out / "pyproject.toml").write_text(told)
    (out / "CARD.md").write_text((place / "CARD.md").read_text())
    (out / "tests").mkdir()
    (out / "tests" / f"test_{package}.py").write_text(TEST.format(package=package, name=package))
    return out


def summary_of(attempt: Attempt) -> str:
    """Return the one line of a package's metadata."""
    return f"{attempt.problem.problem.name}: a verified kernel as a torch operator"


def content_of(attempt: Attempt, form: str, imports: str, licence: Licence | None = None) -> dict[str, str | bytes]:
    """Return the files of a package by name, without the library. `imports` must bind `ops` to it."""
    _check(attempt)
    compiled, candidate, name = compiled_of(attempt), attempt.candidate, name_of(attempt)
    names = [a.name for a in attempt.problem.arguments]
    suffix = ".cpp" if candidate.backend == "cpu" else ".cu"
    needs = NEEDS.get(machine()) if candidate.backend == "cpu" else None
    told = card(attempt, form, licence)
    init = INIT.format(
        summary=f"{attempt.problem.problem.name}: kernel {candidate.id}, as rag-kernels verified it.",
        name=name,
        namespace=name,
        given=", ".join(names),
        imports=imports,
        needs=CHECK.format(needs=needs, suffix=suffix) if needs else "",
        functional=literal(compiled.functional),
        arguments=pprint.pformat(compiled.arguments, width=100),
        outputs=pprint.pformat(compiled.outputs, width=100),
        backend=compiled.backend,
        constants=tuple(compiled.constants.values()),
        any_alignment=compiled.any_alignment,
        names=names,
    )
    return {
        "__init__.py": init,
        **{
            f"_{Path(str(m.__file__)).name}": carried(Path(str(m.__file__)))
            for m in (guard, launch, served, torch_operator)
        },
        f"kernel{suffix}": candidate.source,
        **headers(candidate.source),
        "card.json": card_json(told),
        "CARD.md": card_text(told),
    }


def name_of(attempt: Attempt) -> str:
    """Return the operator's name, which is the package's: the problem's, as an identifier."""
    name = re.sub(r"\W+", "_", attempt.problem.problem.name).strip("_").lower()
    return name if name[:1].isalpha() else f"kernel_{name}"


def _check(attempt: Attempt) -> None:
    candidate, problem = attempt.candidate, attempt.problem
    if not isinstance(attempt.judged.verdict, Passed):
        raise ProblemError(f"Kernel {candidate.id} was not found right: export one that passed.")
    if candidate.tier != "kernel":
        raise ProblemError(
            f"Kernel {candidate.id} is of the tier {candidate.tier}, whose forward is Python: export it as module."
        )
    if problem.mutated or problem.written:
        raise ProblemError(
            f"{problem.problem.name} writes to {', '.join((*problem.mutated, *problem.written))}, and a functional "
            "operator writes to nothing: export it as module."
        )


def carried(file: Path) -> str:
    """Return a file of ours as a package carries it: its imports of ours are of its neighbours."""
    return re.sub(r"from rag_kernels\.export\.serving\.(\w+) import", r"from ._\1 import", file.read_text())
