"""The format `torch-op`: a package with a torch operator, its library, source and tests.

Comes in: an attempt and a folder. Goes out: a package that imports nothing of ours: the check of calls, the launch and
the operator are files of it. `content_of` is what other formats put into packages of theirs.
"""

from __future__ import annotations

import json
import pprint
import re
from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.export.backward import paired
from rag_kernels.export.card import Licence, card, card_json, card_of_backward, card_text
from rag_kernels.export.evidence import CARD_OF_BACKWARD, Pulled
from rag_kernels.export.forms.module_file import compiled_of, literal
from rag_kernels.export.forms.portable import NEEDS, headers, machine, portable_library
from rag_kernels.export.package import Folder

KERNEL, BACKWARD = "kernel", "backward"  # libraries and sources
SERVING = Path(__file__).parents[1] / "serving"  # read, not imported: some of it loads torch
NEEDED = ("torch>=2.6", "apache-tvm-ffi>=0.1.9,<0.2")
INIT = '''\
"""{summary}

`{name}({given})` is the operator `torch.ops.{namespace}.{name}`. It refuses calls that were not verified.
"""

import torch
{imports}
from ._launch import Launch
from ._served import Argument, Output, Served
from ._torch_operator import {used}

{needs}
FUNCTIONAL = {functional}

SERVED = Served(
    [Argument(*argument) for argument in {arguments}],
    [Output(*output) for output in {outputs}],
    {backend!r},
)

{pulled}_launch = Launch(
    {name!r},
    SERVED,
    {constants},
    lambda: ops.forward,
    any_alignment={any_alignment},
    functional=FUNCTIONAL,{more}
)
_operator = operator_of(_launch, __package__.rpartition(".")[2], {names})


def {name}({given}):
    return _operator({given})


__all__ = [{name!r}]
'''
PULLED = """\
# Its gradients, by kernel {id}.
BACKWARD = Backward(
    Launch(
        "{name}_backward",
        Served(
            [Argument(*argument) for argument in {arguments}],
            [Output(*output) for output in {outputs}],
            {backend!r},
        ),
        {constants},
        lambda: ops.backward,
        any_alignment={any_alignment},
    ),
    {takes},
    {gives},
)

"""
LOADED = """\
from pathlib import Path

import tvm_ffi

ops = tvm_ffi.load_module(str(Path(__file__).with_name("kernel.so")))
"""
LOADED_BOTH = """\
from pathlib import Path
from types import SimpleNamespace

import tvm_ffi

ops = SimpleNamespace(
    forward=tvm_ffi.load_module(str(Path(__file__).with_name("kernel.so"))).forward,
    backward=tvm_ffi.load_module(str(Path(__file__).with_name("backward.so"))).forward,
)
"""
CHECK = """\
if torch.backends.cpu.get_cpu_capability() not in {needs}:
    raise ImportError("This kernel was built for CPUs with AVX2, and this one has none: build kernel{suffix} for it.")
"""
TEST = '''\
"""The operator as torch tests operators, on the sizes for which it was verified."""

import torch

import {package}


def drawn():
    given = []
    for argument in {package}.SERVED.arguments:
        kind = getattr(torch, argument.dtype) if argument.role != "scalar" else None
        if kind is None:
            given.append(argument.shape)
        elif kind.is_floating_point:
            given.append(torch.rand(argument.shape, dtype=kind, device={package}.SERVED.backend))
        else:
            given.append(torch.ones(argument.shape, dtype=kind, device={package}.SERVED.backend))
    return given


def functional(*given):
    names = {{}}
    exec({package}.FUNCTIONAL, names)
    return names["module_fn"](*given)


def leaves(given):
    return [v.clone().requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v for v in given]


def gradients(call, given):
    result = call(*given)
    made = [result] if torch.is_tensor(result) else result
    flows = [output for output in made if output.requires_grad]
    torch.autograd.backward(flows, [output.detach().cos() for output in flows])
    return [v.grad for v in given if torch.is_tensor(v)]


def test_the_operator():
    given = drawn()
    torch.testing.assert_close({package}.{name}(*given), functional(*given))
    torch.library.opcheck({package}._operator, tuple(given))


def test_its_gradients():
    given = drawn()
    wanted = gradients(functional, leaves(given))
    found = gradients({package}.{name}, leaves(given))
    pairs = [(one, other) for one, other in zip(found, wanted) if other is not None]
    torch.testing.assert_close([one for one, _ in pairs], [other for _, other in pairs])
    torch.library.opcheck({package}._operator, tuple(leaves(given)))
'''
# Lines that are others where there are floats of eight bits: few operators take these, and a step of them is a quarter.
OF_EIGHT_BITS = {
    "torch.rand(argument.shape, dtype=kind, device={package}.SERVED.backend)": (
        "torch.rand(argument.shape, device={package}.SERVED.backend).to(kind)"
    ),
    "torch.testing.assert_close({package}.{name}(*given), functional(*given))": (
        "close({package}.{name}(*given), functional(*given))"
    ),
    "torch.library.opcheck({package}._operator, tuple(given))": (
        'torch.library.opcheck({package}._operator, tuple(given), test_utils=["test_faketensor"])'
    ),
    "def test_the_operator():": """\
def close(ours, theirs):
    pairs = zip(*([made] if torch.is_tensor(made) else made for made in (ours, theirs)))
    for one, other in pairs:
        few = one.is_floating_point() and one.itemsize == 1
        one, other = (one.float(), other.float()) if few else (one, other)
        torch.testing.assert_close(one, other, **({{"rtol": 0.25, "atol": 2.0**-9}} if few else {{}}))


def test_the_operator():""",
}
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


def write_torch_op(attempt: Attempt, out: Path, licence: Licence | None = None, backward: Pulled | None = None) -> Path:
    """Write the package into a new folder and return it; raises ProblemError for a kernel that cannot be one."""
    package = name_of(attempt)
    place = out / package
    content, built = content_of(attempt, "torch-op", licence, backward), libraries(attempt, backward)
    place.mkdir(parents=True)
    for name, text in content.items():
        (place / name).write_text(text)
    for name, library in built.items():
        (place / name).write_bytes(library)
    project, needed = package.replace("_", "-"), json.dumps(NEEDED)
    told = PYPROJECT.format(project=project, package=package, summary=summary_of(attempt), needed=needed)
    (out / "pyproject.toml").write_text(told)
    (out / "CARD.md").write_text((place / "CARD.md").read_text())
    (out / "tests").mkdir()
    (out / "tests" / f"test_{package}.py").write_text(test_of(attempt, package))
    return out


def test_of(attempt: Attempt, package: str) -> str:
    """Return the package's tests."""
    text, specs = TEST, [*(a.spec for a in attempt.problem.tensors), *attempt.problem.outputs]
    for usual, other in OF_EIGHT_BITS.items() if any("float8" in spec.dtype for spec in specs) else ():
        text = text.replace(usual, other)
    return text.format(package=package, name=package)


def summary_of(attempt: Attempt) -> str:
    """Return the one line of a package's metadata."""
    return f"{attempt.problem.problem.name}: a verified kernel as a torch operator"


def loaded(backward: Pulled | None) -> str:
    """Return the lines that bind `ops` to the kernel, and to the one for its gradients."""
    return LOADED_BOTH if backward is not None else LOADED


def libraries(attempt: Attempt, backward: Pulled | None) -> dict[str, bytes]:
    """Build the kernel, and the one for its gradients, for other machines; return the libraries by their names."""
    kernels = {KERNEL: attempt} | ({BACKWARD: backward.attempt} if backward is not None else {})
    return {f"{name}.so": portable_library(one.candidate) for name, one in kernels.items()}


def content_of(
    attempt: Attempt,
    form: str,
    licence: Licence | None = None,
    backward: Pulled | None = None,
    *,
    imports: str = "",
) -> dict[str, str]:
    """Return the files of a package by name, without the libraries. `imports` must bind `ops` to them."""
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
        imports=imports or loaded(backward),
        used="Backward, operator_of" if backward is not None else "operator_of",
        pulled=_pulled(attempt, backward) if backward is not None else "",
        more="\n    backward=BACKWARD," if backward is not None else "",
        needs=CHECK.format(needs=needs, suffix=suffix) if needs else "",
        functional=literal(compiled.functional),
        arguments=pprint.pformat(compiled.arguments, width=100),
        outputs=pprint.pformat(compiled.outputs, width=100),
        backend=compiled.backend,
        constants=tuple(compiled.constants.values()),
        any_alignment=compiled.any_alignment,
        names=names,
    )
    files: dict[str, str] = {
        "__init__.py": init,
        **carried("guard", "launch", "served", "torch_operator"),
        f"{KERNEL}{suffix}": candidate.source,
        **headers(candidate.source),
        "card.json": card_json(told),
        "CARD.md": card_text(told),
    }
    if backward is None:
        return files
    told, source = card_of_backward(attempt, backward, licence), backward.attempt.candidate.source
    files["CARD.md"] += f"\n{card_text(told)}"
    return {**files, f"{BACKWARD}{suffix}": source, **headers(source), CARD_OF_BACKWARD: card_json(told)}


def _pulled(attempt: Attempt, backward: Pulled) -> str:
    """Return the text of the kernel for the gradients."""
    made, (takes, gives) = compiled_of(backward.attempt), paired(attempt, backward)
    return PULLED.format(
        id=backward.attempt.candidate.id,
        name=name_of(attempt),
        arguments=pprint.pformat(made.arguments, width=100),
        outputs=pprint.pformat(made.outputs, width=100),
        backend=made.backend,
        constants=tuple(made.constants.values()),
        any_alignment=made.any_alignment,
        takes=takes,
        gives=gives,
    )


def name_of(attempt: Attempt) -> str:
    """Return the operator's name, which is the package's: the problem's, as an identifier."""
    name = re.sub(r"\W+", "_", attempt.problem.problem.name).strip("_").lower()
    return name if name[:1].isalpha() else f"kernel_{name}"


def carried(*modules: str) -> dict[str, str]:
    """Return files of `serving` as a package carries them: their imports of ours are of its neighbours."""
    texts = {f"_{module}.py": (SERVING / f"{module}.py").read_text() for module in modules}
    ours = re.compile(r"from rag_kernels\.export\.serving\.(\w+) import")
    return {name: ours.sub(r"from ._\1 import", text) for name, text in texts.items()}


PACKAGE = Folder(
    write=write_torch_op, loaded_by="an import, with torch and tvm-ffi alone", with_gradients=write_torch_op
)
