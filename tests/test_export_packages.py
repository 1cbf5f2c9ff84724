"""Kernels as packages, each loaded by the one that it is for, in a process that cannot import ours."""

from __future__ import annotations

import io
import json
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from cli_home import quick_limits
from factories import attempt, candidate, passed, problem, wrong
from support.processes import alone
from typer.testing import CliRunner

import rag_kernels
from rag_kernels import wiring
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Attempt, Exemplar
from rag_kernels.cli import app
from rag_kernels.eval.errors import Internal, ProblemError
from rag_kernels.eval.records import Candidate
from rag_kernels.export.card import card, card_text
from rag_kernels.export.check import check_package
from rag_kernels.export.evidence import MARK
from rag_kernels.export.format_names import DEFAULT, FIRST_LINE, FORMS, SOURCE, formats
from rag_kernels.export.forms.hf_kernels import write_hf_kernels
from rag_kernels.export.forms.torch_op_package import write_torch_op
from rag_kernels.export.package import Folder, TextFile
from rag_kernels.export.packages import PACKAGES, content, export_kernel, packages_of, write_package


@pytest.fixture(scope="module")
def tanh() -> Attempt:
    """Also refuses some calls that it was verified for, as kernels with checks of their own may."""
    p = problem("tanh")
    source = candidate(p).source.replace("  #pragma", '  RK_CHECK(x.data[0] != 77.0f, "no 77");\n  #pragma')
    return attempt(p=p, candidate=Candidate(source, "kernel", "cpu"), verdict=passed())


@pytest.fixture(scope="module")
def hf(tanh: Attempt, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("kernels")
    return write_hf_kernels(tanh, tmp_path_factory.mktemp("packages") / "hf")


TANH_CU = """
#include "rag_kernel.h"
__global__ void scaled(const float* x, float* out, int64_t n, float f) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = tanhf(x[i]) * f;
}
void run(rk::Tensor<const float> x, double factor, rk::Tensor<float> out) {
  RK_LAUNCH(scaled, dim3((x.numel() + 255) / 256), dim3(256), 0, out, x.data, out.data, x.numel(), float(factor));
}
RK_EXPORT(forward, run)
"""
CALLS = """
import torch
x = torch.randn(64, 1024)
torch.testing.assert_close(call(x), torch.tanh(x) * 2.0)
leaf = x.clone().requires_grad_()
call(leaf).sum().backward()
torch.testing.assert_close(leaf.grad, 2.0 * (1 - torch.tanh(x) ** 2))
whole = torch.compile(call, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(whole(x), torch.tanh(x) * 2.0)
try:
    call(x[:3])
except ValueError as error:
    print(error)
"""


def test_a_format_is_found_by_a_first_line_that_closes_its_docstring_too() -> None:
    page = (Path(__file__).parents[1] / "docs/extending.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith('"""The format')]
    found = FIRST_LINE.match(line)
    assert found and (found["name"], found["told"]) == ("header", "a C++ header with the kernel")
    with pytest.raises(ValueError, match="comments begin with"):
        TextFile(text=str, suffix=".txt", comment="", loaded_by="")


def test_a_torch_op_package_runs_its_own_tests_without_us(tanh: Attempt, tmp_path: Path) -> None:
    written = write_torch_op(tanh, tmp_path / "package")
    tested = f"import sys, pytest\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {str(written / 'tests')!r}]))"
    told = alone(f"from scaled_tanh import scaled_tanh as call\n{CALLS}\n{tested}", written)
    assert "input 0 is float32[3, 1024], and was verified as float32[64, 1024]" in told and "2 passed" in told
    assert tomllib.loads((written / "pyproject.toml").read_text())["project"]["name"] == "scaled-tanh"
    card = json.loads((written / "scaled_tanh" / "card.json").read_text())
    assert (card["verdict"], card["kernel"], card["over_eager"]["median"]) == ("Passed", tanh.candidate.id, 2.0)
    assert not any(str(Path.home()) in f.read_text(errors="ignore") for f in written.rglob("*") if f.is_file())


def test_hugging_faces_loader_takes_it(hf: Path) -> None:
    load = "from pathlib import Path; from kernels import get_local_kernel\n"
    load += f"k = get_local_kernel(Path({str(hf)!r}), backend='cpu')\n"
    told = alone(f"{load}call = k.scaled_tanh\nassert k.__all__ == ['scaled_tanh']\n{CALLS}")
    assert "verified as float32[64, 1024]" in told
    [library] = hf.rglob("*.so")  # as kernel-builder's check-abi asks
    checked = pytest.importorskip("kernel_abi_check").ObjectFile(library)
    assert checked.check_manylinux("manylinux_2_28") == checked.check_python_abi("3.9") == []
    build = tomllib.loads((hf / "build.toml").read_text())
    assert build["general"]["edition"] == 5 and all(
        (hf / s).is_file() for s in build["kernel"]["scaled_tanh_cpu"]["src"]
    )


@pytest.mark.skipif(not shutil.which("nvcc"), reason="builds for a GPU")
def test_one_folder_holds_a_kernel_for_each_kind_of_device(tanh: Attempt, tmp_path: Path) -> None:
    pytest.importorskip("kernels")
    gpu = attempt(p=problem("tanh"), candidate=Candidate(TANH_CU, "kernel", "cuda"), verdict=passed())
    folder = write_package(gpu, "hf-kernels", tmp_path / "both")
    assert write_package(tanh, "hf-kernels", folder) == folder
    with pytest.raises(ProblemError, match="is there already"):
        write_package(tanh, "hf-kernels", folder)
    build = tomllib.loads((folder / "build.toml").read_text())
    assert build["general"]["backends"] == ["cpu", "cuda"] and len(list((folder / "build").iterdir())) == 2
    assert {kernel["backend"]: len(kernel["src"]) for kernel in build["kernel"].values()} == {"cpu": 2, "cuda": 2}
    checked = check_package(folder)
    assert [a.candidate.backend for a in checked.attempts] == ["cuda", "cpu"] and checked.other_texts == ()
    load = "from pathlib import Path; from kernels import get_local_kernel\n"
    load += f"k = get_local_kernel(Path({str(folder)!r}), backend='cpu')\n"
    alone(f"{load}call = k.scaled_tanh\n{CALLS}")


KERNELIZED = """
import copy, torch, warnings
torch.version.cuda = None  # by which `kernels` chooses a backend, also on a machine without a GPU
from torch import nn
from kernels import LocalLayerRepository, Mode, kernelize, register_kernel_mapping, use_kernel_forward_from_hub

@use_kernel_forward_from_hub("Scaled")
class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return torch.tanh(x) * self.factor

repository = LocalLayerRepository(Path(FOLDER), layer_name="ScaledTanh")
register_kernel_mapping({"Scaled": {"cpu": repository}})
model = nn.Sequential(nn.Linear(1024, 1024), Scaled(2.0), Scaled(3.0))
twin, x = copy.deepcopy(model), torch.randn(64, 1024)
model = kernelize(model.eval(), mode=Mode.INFERENCE, device="cpu")
calls = []
call = model[1].forward.__func__.__globals__["_call"]
used = call.operator
call.operator = lambda *given: calls.append(1) or used(*given)
with torch.no_grad(), warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for factor, taken in [(2.0, 1), (0.5, 1), (2.0, 2)]:
        model[1].factor = twin[1].factor = factor
        torch.testing.assert_close(model(x), twin(x))
        assert len(calls) == taken, "modules of other constants run their own forward"
    torch.testing.assert_close(model(x[:3]), twin(x[:3]))
    assert len(calls) == 2
    x[0, 0], model[0], twin[0] = 77.0, nn.Identity(), nn.Identity()
    torch.testing.assert_close(model(x), twin(x))
    assert len(calls) == 3 and "refuses the call: no 77" in str(told[-1].message)
print([str(w.message) for w in told])
"""


def test_kernelize_puts_it_into_a_model_where_the_module_is_the_verified_one(hf: Path) -> None:
    told = alone(f"from pathlib import Path\nFOLDER = {str(hf)!r}\n{KERNELIZED}")
    assert "factor is 3.0, and was verified as 2.0" in told and "input 0 is float32[3, 1024]" in told


def test_what_cannot_be_a_package_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in PACKAGES:  # whatever a format forgets
        with pytest.raises(ProblemError, match="not found right"):
            write_package(attempt(verdict=wrong()), form, tmp_path / "one")
    composed = Candidate("KERNELS = r'''x'''\n\n\ndef forward(x):\n    return x\n", "composed", "cpu")
    with pytest.raises(ProblemError, match="cannot be written as hf-kernels; choose of source, module"):
        write_package(attempt(candidate=composed, verdict=passed()), "hf-kernels", tmp_path / "two")
    with pytest.raises(Internal, match=r"without card\.json"):
        monkeypatch.setitem(PACKAGES, "forgetful", Folder(write=lambda made, out, told: out, loaded_by=""))
        write_package(attempt(verdict=passed()), "forgetful", tmp_path / "three")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProblemError, match="has no kernel k_nothing"):
        export_kernel(MemoryArchive(), "k_nothing", "module")
    with pytest.raises(ProblemError, match="has no kernel k_nothing"):  # by the archive's place, as elsewhere
        rag_kernels.export_kernel(":memory:", "k_nothing", "module")


def test_the_command_writes_archived_kernels(tanh: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from factories import run

    from rag_kernels.archive.store import open_archive

    monkeypatch.chdir(tmp_path)
    store = open_archive("archive")
    store.start_run(run("run1"))
    store.record_attempt(tanh)
    command = ["export", tanh.candidate.id, "--archive", "archive", "--as"]
    for form, name in [
        ("module", "scaled_tanh.py"),
        ("source", "scaled_tanh.cpp"),
        ("torch-op", "scaled_tanh-torch-op"),
    ]:
        done = CliRunner().invoke(app, [*command, form])
        assert done.exit_code == 0 and name in done.stdout and (tmp_path / name).exists(), done.output
    again = CliRunner().invoke(app, [*command, "torch-op"])
    assert again.exit_code != 0 and "is there already" in str(again.exception)
    for form in ("source", "kernelbench"):
        done = CliRunner().invoke(app, [*command, form, "--backward", "k_any"])
        assert f"goes with the form module, hf-kernels, standalone, torch-op or wheel, and not with {form}" in str(
            done.exception
        )


def test_every_package_holds_evidence_and_what_it_speaks_of(tanh: Attempt, tmp_path: Path) -> None:
    for form in packages_of(tanh.candidate):
        written = write_package(tanh, form, placed(tmp_path, form))
        checked = check_package(written)
        assert (checked.form, checked.attempt) == (form, tanh)
        assert (checked.other_texts, checked.other_libraries) == ((), ()), form
        if written.is_file() and written.suffix != ".whl":
            written.write_text(written.read_text().replace("std::tanh", "std::tan"))
            assert check_package(written).other_texts == (written.name,)
        elif form == "torch-op":
            (written / "scaled_tanh" / "kernel.cpp").write_text("// another\n")
            (written / "scaled_tanh" / "kernel.so").write_bytes(b"another")
            checked = check_package(written)
            assert checked.other_texts == ("scaled_tanh/kernel.cpp",)
            assert checked.other_libraries == ("scaled_tanh/kernel.so",)
    name, data = content(tanh, "wheel")
    assert name.endswith(".whl.zip") and ZipFile(io.BytesIO(data)).namelist() == [name.removesuffix(".zip")]
    (tmp_path / "none.py").write_text("x = 1\n")
    with pytest.raises(ProblemError, match="holds no evidence"):
        check_package(tmp_path / "none.py")


@pytest.mark.parametrize("form", ["module", "gpu-mode", "kernelbench"])
def test_the_evidence_of_a_file_is_its_own_and_not_a_line_of_its_source(
    tanh: Attempt, tmp_path: Path, form: str
) -> None:
    marked = replace(tanh.candidate, source=f"{tanh.candidate.source}\n// {MARK}module of-another-kernel\n")
    attempt = replace(tanh, candidate=marked)
    checked = check_package(write_package(attempt, form, placed(tmp_path, form)))
    assert (checked.form, checked.attempt, checked.other_texts) == (form, attempt, ())


def test_a_file_that_names_a_format_is_one_and_users_are_told() -> None:
    forms = {path.stem: path.read_text() for path in FORMS.glob("*.py")}
    assert {named.file for named in formats().values()} == {n for n, text in forms.items() if "\nPACKAGE = " in text}
    assert all(name in PACKAGES and named.told for name, named in formats().items()) and next(iter(PACKAGES)) == DEFAULT
    rows = [(name, named.told, PACKAGES[name].loaded_by or "nobody") for name, named in formats().items()]
    rows += [(SOURCE, "the kernel as it was judged", "`rag-kernels eval`")]
    table = "\n".join(f"| `{name}` | {told} | {loaded_by} |" for name, told, loaded_by in rows)
    page = (Path(__file__).parents[1] / "docs" / "exports.md").read_text()
    assert f"|\n{table}\n\n" in page, f"docs/exports.md has another table than:\n{table}"
    peers = (Path(__file__).parent / "bench" / "exported_peers.py").read_text()
    assert set(re.findall(r"^def by_(\w+)\(", peers, re.M)) == {
        name.replace("-", "_") for name, package in PACKAGES.items() if package.loaded_by
    }


def test_a_text_of_any_suffix_is_one_file_with_its_evidence(
    tanh: Attempt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    note = TextFile(text=lambda made: "told\n", suffix=".h", comment="//", loaded_by="")
    monkeypatch.setitem(PACKAGES, "a-note", note)
    name, data = content(tanh, "a-note")
    assert name.endswith("_a_note.h") and data.startswith(b"told\n\n\n// #")
    assert all(line.startswith(b"//") for line in data.splitlines()[3:])
    (tmp_path / name).write_bytes(data)
    assert check_package(tmp_path / name).other_texts == ()
    (tmp_path / name).write_bytes(data.replace(b"told", b"other", 1))
    assert check_package(tmp_path / name).other_texts == (name,)


def test_a_card_names_whom_a_kernel_came_from_with_their_licences(tanh: Attempt) -> None:
    """What it was made of, and what its writer was shown beside; and the licence of its own."""
    shown = (Exemplar("k_parent", 1, 1.0, ()), Exemplar("k_shown", 2, 0.5, ()))
    made = attempt(p=tanh.problem, candidate=tanh.candidate, verdict=passed(), parents=("k_parent",), exemplars=shown)
    row = card(made, "wheel", lambda kernel: {"k_shown": "MIT, Ada", made.candidate.id: "Apache-2.0"}.get(kernel, ""))
    assert (row["licence"], row["judge_version"]) == ("Apache-2.0", made.judged.environment.judge_version)
    assert row["lineage"] == [
        {"kernel": "k_parent", "relation": "parent", "licence": ""},
        {"kernel": "k_shown", "relation": "retrieved", "licence": "MIT, Ada"},
    ]
    assert "k_shown, retrieved, MIT, Ada" in card_text(row) and made.judged.device.name in card_text(row)


def test_verify_judges_packages_of_every_form_again(
    tanh: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel in all forms for a CPU, judged once; one for a GPU in the form that is for these alone."""
    monkeypatch.setattr(wiring, "Limits", quick_limits)
    gpu = attempt(p=problem("tanh"), candidate=Candidate(TANH_CU, "kernel", "cuda"), verdict=passed())
    attempts = {form: tanh if form in packages_of(tanh.candidate) else gpu for form in PACKAGES}
    places = {form: str(write_package(made, form, placed(tmp_path, form))) for form, made in attempts.items()}
    cut = tmp_path / "cut.py"
    cut.write_text(Path(places["gpu-mode"]).read_text().replace("std::tanh", "std::tan"))
    done = CliRunner().invoke(app, ["verify", *places.values(), str(cut), "--no-confirm", "--json"])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    verified = {row["package"]: row for row in rows if row["type"] == "verified"}
    assert done.exit_code == 1 and len(verified) == len(PACKAGES) + 1, done.output
    for form, place in places.items():
        row = verified[place]
        here = torch.cuda.is_available() or attempts[form] is tanh
        assert (row["form"], row["holds"], row["other_texts"], row["other_libraries"]) == (form, here, [], []), row
        assert (row["why_not"] == "") == here, row
    assert verified[str(cut)]["holds"] and verified[str(cut)]["other_texts"] == ["cut.py"]
    assert len([row for row in rows if row["type"] == "attempt"]) == 2, "each kernel once"


def placed(folder: Path, form: str) -> Path:
    inside = folder / "wheel" if form == "wheel" else folder
    return PACKAGES[form].place(inside, form.replace("-", "_"))
