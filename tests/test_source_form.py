"""What form a source has is decided in one place: each form once, from what is known and from the text alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_kernels.eval.build.candidate_form import candidate_from_file
from rag_kernels.eval.records import Backend, Candidate, ProblemError, Tier
from rag_kernels.eval.source_form import Language, SourceForm, form_of, is_whole, source_form

CPP = '#include "rag_kernel.h"\nvoid f(rk::Tensor<float> y) {}\nRK_EXPORT(forward, f)\n'
CUDA = CPP.replace("void f", "__global__ void k() {}\nvoid f")
PYBIND = "#include <torch/extension.h>\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n"
COMPOSED = f"KERNELS = r'''{CUDA}'''\n\n\ndef forward(x):\n    return x\n"
MODULE = "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x\n"
INLINE = f"SOURCE = r'''{PYBIND}'''\n{MODULE}"  # builds an extension of its own, and is Python all the same

FORMS: list[tuple[str, Tier, Backend, Language, str]] = [
    (CPP, "kernel", "cpu", "cpp", ".cpp"),
    (CUDA, "kernel", "cuda", "cuda", ".cu"),
    (PYBIND, "module", "cpu", "cpp", ".cpp"),
    (PYBIND + CUDA, "module", "cuda", "cuda", ".cu"),
    (COMPOSED, "composed", "cuda", "python", ".py"),
    (MODULE, "module", "cpu", "python", ".py"),
    (INLINE, "module", "cpu", "python", ".py"),
]


@pytest.mark.parametrize(("source", "tier", "backend", "language", "suffix"), FORMS)
def test_each_form(source: str, tier: Tier, backend: Backend, language: Language, suffix: str, tmp_path: Path) -> None:
    wanted = SourceForm(tier, language, backend)
    assert source_form(source) == form_of(Candidate(source, tier, backend)) == wanted
    assert wanted.suffix == suffix
    assert is_whole(source)
    file = tmp_path / f"kernel{suffix}"
    file.write_text(source)
    assert candidate_from_file(file, "cpu") == Candidate(source, tier, backend)


def test_what_is_known_decides_and_the_rest_is_read() -> None:
    assert source_form(CPP, backend="cuda") == SourceForm("kernel", "cuda", "cuda")
    assert source_form("int a;", suffix=".cu") == SourceForm("kernel", "cuda", "cuda")
    assert source_form("int a;", suffix=".cc", default="cuda") == SourceForm("kernel", "cpp", "cpu")
    assert source_form(MODULE, default="cuda") == SourceForm("module", "python", "cuda")
    assert source_form(MODULE, suffix=".cpp").tier == "kernel"  # a name in a comment makes no module of it
    assert source_form("x = 1\n", tier="composed").suffix == source_form("x = 1\n", suffix=".py").suffix == ".py"


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ProblemError, match=r"must end in \.cpp, \.cc, \.cxx, \.cu, \.py"):
        candidate_from_file(tmp_path / "notes.txt", "cpu")


@pytest.mark.parametrize(("content", "said"), [(b" \n", "is empty"), (b"\xff", "cannot be read as text")])
def test_a_file_without_text_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "kernel.cpp").write_bytes(content)
    with pytest.raises(ProblemError, match=said):
        candidate_from_file(tmp_path / "kernel.cpp", "cpu")


def test_a_python_file_without_a_candidate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("x = 1\n")
    with pytest.raises(ProblemError, match="neither `ModelNew` nor `KERNELS`"):
        candidate_from_file(tmp_path / "kernel.py", "cpu")
