"""The format `hf-kernels`: a folder for Hugging Face's kernels.

Comes in: an attempt and a folder. Goes out: `build.toml` and sources as kernel-builder takes them, and a variant that
was built here, under `build/`. What the Hub asks of builds only kernel-builder fulfils: this one is for local use.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.build.compile import toolchain
from rag_kernels.eval.errors import MachineError
from rag_kernels.export.card import Licence
from rag_kernels.export.evidence import CARD, CARD_OF_BACKWARD, Pulled, of_variants
from rag_kernels.export.forms.portable import machine
from rag_kernels.export.forms.torch_op_package import BACKWARD, carried, content_of, libraries, loaded, name_of
from rag_kernels.export.package import Folder

VERSION = 1
UNKNOWN = "Unknown"  # a licence nobody named
GENERAL = """\
[general]
name = "{name}"
version = {version}
edition = 5
license = "{licence}"
backends = [{backends}]

[tvm-ffi]
src = []
"""
KERNEL = """
[kernel.{module}_{backend}]
backend = "{backend}"
depends = []
src = [{sources}]
include = ["{module}_{backend}"]
"""
INIT = """\
import json
from pathlib import Path

if json.loads(Path(__file__).with_name("metadata.json").read_text())["backend"]["type"] == "cuda":
    from ._cuda import FUNCTIONAL, SERVED, _operator, {name}
else:
    from ._cpu import FUNCTIONAL, SERVED, _operator, {name}
{layers}
__all__ = [{name!r}]
"""
LAYERS = '''\
"""The problem's module as a layer for `kernelize`: a module of other constants keeps its own forward."""

from torch import nn

from . import SERVED, _operator, _problem
from ._layer import LayerCall

_call = LayerCall(_operator, SERVED, lambda: _problem.Model(*_problem.get_init_inputs()))


class {name}(nn.Module):
    has_backward = True
    can_torch_compile = False

    def forward({signature}):
        return _call({given})


__all__ = [{name!r}]
'''


def write_hf_kernels(
    attempt: Attempt, out: Path, licence: Licence | None = None, backward: Pulled | None = None
) -> Path:
    """Write sources and the local variant into a folder, new or with a kernel for other devices, and return it."""
    content = content_of(attempt, "hf-kernels", licence, backward, imports="from ._ops import ops")
    built = libraries(attempt, backward)  # before anything is written: they may not build
    module, backend = name_of(attempt), attempt.candidate.backend
    suffix = ".cpp" if backend == "cpu" else ".cu"
    spoken = (licence(attempt.candidate.id) if licence else "") or UNKNOWN
    texts = {name: text for name, text in content.items() if name.endswith(".py")} | _layers(attempt)
    texts[f"_{backend}.py"] = texts.pop("__init__.py")
    layers = "from . import layers  # noqa: E402\n" if "layers.py" in texts else ""
    texts["__init__.py"] = INIT.format(name=module, layers=layers)
    _write(out / "tvm-ffi-ext" / module, texts)
    sources = {name: text for name, text in content.items() if name.endswith((".h", suffix))}
    if backward is not None:
        sources[f"{BACKWARD}{suffix}"] = beside(backward.attempt.candidate.source)
    _write(out / f"{module}_{backend}", {**sources})
    cards = {name: content[name] for name in (CARD, CARD_OF_BACKWARD) if name in content}
    if not (out / CARD).exists():  # each variant has its own, too
        _write(out, {"CARD.md": content["CARD.md"], **cards})
    else:
        (out / "CARD.md").write_text("\n".join([(out / "CARD.md").read_text(), content["CARD.md"]]))
    (out / "build.toml").write_text(_build(out, module, spoken))
    variant: dict[str, str | bytes] = {**texts, "_ops.py": loaded(backward), **built, **cards}
    place = out / "build" / _variant(backend)
    _write(place, variant)
    (place / "metadata.json").write_text(_metadata(attempt, module, spoken, place))
    return out


def beside(source: str) -> str:
    """Return a source as it can be linked with the forward's: in a namespace but for its includes, named `backward`."""
    included = [line for line in source.splitlines() if re.match(r"\s*#\s*include\b", line)]
    text = "\n".join(line for line in source.splitlines() if line not in included)
    text = re.sub(r"\b(RK_EXPORT|TVM_FFI_DLL_EXPORT_TYPED_FUNC)\(\s*forward\s*,", r"\1(backward,", text)
    return "\n".join([*included, "namespace rk_backward {", text.strip(), "}  // namespace rk_backward", ""])


def joins(attempt: Attempt, out: Path) -> bool:
    """Return whether a folder holds the same problem's kernels for other devices, and none for this one's."""
    held = [found for form, found in of_variants(out) if form == "hf-kernels"]
    backends = {found.candidate.backend for found in held}
    same = all(found.problem.problem.id == attempt.problem.problem.id for found in held)
    return bool(held) and same and attempt.candidate.backend not in backends


def _build(out: Path, module: str, licence: str) -> str:
    """Return `build.toml` for the sources that lie there."""
    folders = {backend: out / f"{module}_{backend}" for backend in ("cpu", "cuda")}
    held = {backend: folder for backend, folder in folders.items() if folder.is_dir()}
    text = GENERAL.format(
        name=module.replace("_", "-"), version=VERSION, licence=licence, backends=", ".join(f'"{b}"' for b in held)
    )
    for backend, folder in held.items():
        sources = ", ".join(f'"{folder.name}/{file.name}"' for file in sorted(folder.iterdir()))
        text += KERNEL.format(module=module, backend=backend, sources=sources)
    return text


def _layers(attempt: Attempt) -> dict[str, str]:
    """Return the files of the layer; none where the forward's signature is not one that others could have."""
    source = attempt.problem.problem.source
    found = _forward(ast.parse(source))
    if found is None or found.args.vararg or found.args.kwarg or found.args.kwonlyargs:
        return {}
    arguments = [*found.args.posonlyargs, *found.args.args]
    for argument in arguments:
        argument.annotation = None  # may name what is not imported there
    if not all(isinstance(default, ast.Constant) for default in found.args.defaults):
        return {}
    first, *others = [argument.arg for argument in arguments]
    given = f"{first}, ({''.join(f'{name}, ' for name in others).rstrip(' ')})"
    return {
        "layers.py": LAYERS.format(name=layer_name(attempt), signature=ast.unparse(found.args), given=given),
        "_problem.py": source,
        **carried("layer", "held", "results", "contents"),
    }


def layer_name(attempt: Attempt) -> str:
    """Return the layer's name: the problem's in capitals, `RmsNorm`."""
    return "".join(word[:1].upper() + word[1:] for word in name_of(attempt).split("_"))


def _forward(tree: ast.Module) -> ast.FunctionDef | None:
    """Return the forward of the class `Model`, where that itself has one."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            return next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "forward"), None)
    return None


def _write(place: Path, files: Mapping[str, str | bytes]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def _variant(backend: str) -> str:
    import torch
    import tvm_ffi

    version = "".join(tvm_ffi.__version__.split(".")[:2])
    device = backend if backend == "cpu" else f"cu{(torch.version.cuda or _of_nvcc()).replace('.', '')}"
    return f"tvm-ffi{version}-{device}-{machine()}-linux"


def _of_nvcc() -> str:
    """Return the compiler's CUDA where torch has none: what was built is for that one."""
    found = re.search(r"cuda_(\d+\.\d+)", toolchain().version)
    if found is None:
        raise MachineError("The CUDA version of nvcc is not known here: export the kernel where torch has CUDA.")
    return found[1]


def _metadata(attempt: Attempt, module: str, licence: str, place: Path) -> str:
    files = {p.name: _digest(p) for p in sorted(place.iterdir())}
    row = {
        "id": f"_{module}_{attempt.candidate.backend}_{attempt.candidate.id.removeprefix('k_')[:12]}",
        "name": module.replace("_", "-"),
        "version": VERSION,
        "license": licence,
        "backend": {"type": attempt.candidate.backend},
        "digest": {"algorithm": "sha256", "files": files},
        "python-depends": [],
    }
    return json.dumps(row, indent=2) + "\n"


def _digest(file: Path) -> str:
    return b64encode(hashlib.sha256(file.read_bytes()).digest()).decode()


PACKAGE = Folder(
    write=write_hf_kernels,
    loaded_by='Hugging Face\'s `kernels.get_local_kernel` (`backend="cpu"` for a CPU kernel under a torch with CUDA)',
    with_gradients=write_hf_kernels,
    joins=joins,
)
