"""The format `standalone`: the same as module, without an import of rag-kernels.

Comes in: an attempt and a path. Goes out: a file that needs torch, tvm-ffi and a compiler. The runtime stands in the
file, as texts that become modules. Names of the problem's file
cannot meet those of the runtime, since each text is a module of its own.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.export.evidence import Pulled
from rag_kernels.export.forms.module_file import head_of, literal, module_text
from rag_kernels.export.forms.portable import headers
from rag_kernels.export.package import WITH_COMPOSED, TextFile

EXPORT = Path(__file__).parents[1]
CARRIED = (
    "serving/guard",
    "serving/served",
    "serving/launch",
    "serving/torch_operator",
    "serving/contents",
    "serving/results",
    "serving/held",
    "serving/inputs",
    "serving/changed",
    "serving/built_alone",
    "runtime",
    "drop_in",
)  # none imports a later one
RUNTIME = """\
# ---- the runtime of rag-kernels (Apache-2.0), which this file carries so that it imports nothing of it ----

RK_HEADERS = {{
{headers}
}}

RK_TEXTS = {{
{texts}
}}


def rk_runtime():
    import importlib.util
    import linecache
    import sys
    import types

    if {package!r} in sys.modules:  # another file has brought the same
        return
    package = sys.modules[{package!r}] = types.ModuleType({package!r})
    package.__path__ = []
    for name, text in RK_TEXTS.items():
        whole, file = f"{package}.{{name}}", f"<{package}.{{name}}>"
        module = sys.modules[whole] = types.ModuleType(whole)
        module.__package__, module.__file__ = {package!r}, file
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks
        exec(compile(text, file, "exec"), vars(module))
        setattr(package, name, module)
    sys.modules["{package}.built"].HEADERS = RK_HEADERS


rk_runtime()

{imports}"""


def standalone_text(attempt: Attempt, backward: Pulled | None = None) -> str:
    """Return the text of an importable module that imports nothing of ours."""
    texts = {Path(name).name.removesuffix("_alone"): _text(name) for name in CARRIED}
    included = headers(attempt.candidate.source)
    included |= headers(backward.attempt.candidate.source) if backward is not None else {}
    number = sha256("".join([*included.values(), *texts.values()]).encode()).hexdigest()[:12]
    package = f"rag_kernels_runtime_{number}"
    written = "\n".join(f"    {name!r}: {literal(text.replace(PLACE, package))}," for name, text in texts.items())
    told = "\n".join(f"    {name!r}: {literal(text)}," for name, text in included.items())
    imports = head_of(package, gradients=backward is not None or attempt.problem.step is not None)
    runtime = RUNTIME.format(package=package, texts=written, headers=told, imports=imports)
    text = module_text(attempt, backward, runtime)
    return text.replace("# torch.ops.rag_kernels.", f"# torch.ops.{package}.")


PLACE = "RK_PACKAGE"  # which the texts have for the name of their package


def _text(name: str) -> str:
    text = (EXPORT / f"{name}.py").read_text()
    text = text.replace('namespace: str = "rag_kernels"', f'namespace: str = "{PLACE}"')
    return re.sub(r"from rag_kernels\.export\.(?:serving\.)?(\w+) import", rf"from {PLACE}.\1 import", text)


PACKAGE = TextFile(
    text=standalone_text,
    suffix=".py",
    comment="#",
    loaded_by="an import, with torch alone",
    tiers=WITH_COMPOSED,
    in_place=True,
    with_gradients=standalone_text,
)
