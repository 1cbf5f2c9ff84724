"""The headers for tensor cores, TMA and clusters: built with nvcc where it is, run on Hopper where that is."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import contract_pieces as pieces
from support.compiler_reading import together

from rag_kernels.eval.build import compile as building
from rag_kernels.eval.build.compile import BuildError, toolchain
from rag_kernels.eval.build.headers import PIECES as HEADERS
from rag_kernels.eval.build.headers import headers_of
from rag_kernels.eval.build.nvrtc import compile_device
from rag_kernels.eval.children.gpu.buffers import COME_LATE
from rag_kernels.eval.machine.device import gpu_name
from rag_kernels.eval.places import INCLUDE

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
CALLS = "".join(
    f"{{ float d[{count}] = {{}}; uint32_t a[4] = {{}}; rk::wgmma_{kind}(d, 0, 0); {also}; x[0] = d[0]; }}\n"
    for count in (8, 16, 24, 32, 64, 96, 128)
    for kind, also in (
        ("bf16", "rk::wgmma_bf16<1, 1>(d, 0, 0); rk::wgmma_bf16(d, a, 0), rk::wgmma_bf16<0, 1>(d, a, 0)"),
        ("f16", "rk::wgmma_f16<0, 1>(d, 0, 0); rk::wgmma_f16<1>(d, a, 0)"),
        ("tf32", "rk::wgmma_tf32(d, a, 0), rk::wgmma_tf32<0, 0>(d, 0, 0), rk::wgmma_tf32<0, 0>(d, a, 0)"),
        ("e4m3", "rk::wgmma_e4m3<0, 0>(d, 0, 0)"),
    )
)
EVERY_WGMMA = f"""#include "rag_kernel.h"
#include "rag_mma.h"
RK_WGMMA_COLUMNS(48)
__global__ void all(float* x) {{ rk::wgmma_fence(); {CALLS} rk::wgmma_commit(); rk::wgmma_wait<0>(); }}
void run(rk::Tensor<float> x) {{ all<<<1, 128>>>(x.data); }}
RK_EXPORT(forward, run)
"""
# What no other test compiles: windows of every rank, groups' barriers, matrices to shared memory; the host's functions
# are there on older machines too, and tell that Hopper's instructions are not.
OTHERS = """#include "rag_kernel.h"
#include "rag_tma.h"
#include "rag_mma.h"
__global__ void others(const __grid_constant__ CUtensorMap map, float* x) {
#ifdef RK_ON_HOPPER
  rk::tma_load_window(&map, 0, 0, 1, 2, 3, 4), rk::tma_load_window_all(&map, 0, 0, 3, 1, 2, 3, 4);
  rk::tma_load_window(&map, 0, 0, 1, 2, 3, 4, 5, 6), rk::tma_load_window_all(&map, 0, 0, 3, 1, 2, 3, 4, 5, 6);
  rk::tma_load_window(&map, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8);
  rk::tma_load_window_all(&map, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8);
  const uint32_t four[4] = {rk::shared_word(0)};
  rk::group_sync<64>(1), rk::group_arrive<64>(2), rk::stmatrix_x4(16, four);
#endif
}
void run(rk::Tensor<float> x) {
  if (!rk::tma_reads(x.data, {x.size(0)}, {4}) || !rk::built_for_hopper((const void*)others)) return;
  const auto map = rk::tma_window_map<3>(x.data, {rk::tma_padded<float>(5), 8, 1}, {0}, {0}, {1}, 8, 16);
  const int places = rk::cluster_places(others, 32, 2, 0);
  rk::launch_clusters(others, dim3(unsigned(2 * places)), 32, 2, 0, (cudaStream_t)rk::stream(x), map, x.data);
}
RK_EXPORT(forward, run)
"""


def build(sources: list[str], arch: str, cache: Path) -> str:
    """Return what the compiler says of sources that it does not take, as one text whose headers are read once."""
    [made] = building.build([(together(sources), "cuda")], tools=toolchain(arch), cache=cache)
    return made.log if isinstance(made, BuildError) else ""


@needs_nvcc
@pytest.mark.parametrize(
    ("arch", "names", "also"),
    [
        ("sm_80", pieces.ON_AMPERE, [OTHERS]),
        ("sm_90", pieces.PIECES, [OTHERS]),
        ("sm_100", ("product_tcgen05", "cluster_sum", "tma_copy", "product_split_tf32"), []),
    ],
)
def test_what_a_target_has_compiles_for_it(arch: str, names: tuple[str, ...], also: list[str], tmp_path: Path) -> None:
    assert build([*map(pieces.source, names), *also], arch, tmp_path) == ""


@needs_nvcc
def test_every_shape_of_wgmma_compiles(tmp_path: Path) -> None:
    [made] = building.build(
        [(EVERY_WGMMA, "cuda")], tools=toolchain("sm_90"), cache=tmp_path
    )  # it adds to namespace rk
    assert not isinstance(made, BuildError), made.log


@needs_nvcc
def test_the_kernel_that_late_inputs_come_from_assembles(tmp_path: Path) -> None:
    (tmp_path / "late.ptx").write_text(COME_LATE)
    asked = ["ptxas", "-arch=sm_90", tmp_path / "late.ptx", "-o", tmp_path / "late.cubin"]
    assert subprocess.run(asked, timeout=60).returncode == 0


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "arch"), [("product_wgmma", "sm_80"), ("product_wgmma", "sm_100"), ("product_tcgen05", "sm_90")]
)
def test_what_a_target_lacks_is_not_declared_for_it(name: str, arch: str, tmp_path: Path) -> None:
    assert "has no member" in build([pieces.source(name)], arch, tmp_path)


def test_a_split_source_of_pieces_compiles_by_nvrtc() -> None:
    reply = compile_device({"source": pieces.source("product_mma"), "arch": "sm_90"})
    if not reply["found"]:
        pytest.skip("there is no NVRTC")
    assert reply["log"] == "" and reply["cubin"]


def test_the_headers_that_a_source_includes_are_found() -> None:
    assert list(headers_of("int main() {}")) == ["rag_kernel.h"]
    found = headers_of(pieces.source("product_wgmma"))
    assert found == {name: (INCLUDE / name).read_text() for name in ("rag_kernel.h", *HEADERS)}
    assert list(headers_of('  #  include "rag_mma.h"\n')) == ["rag_kernel.h", "rag_mma.h"]


def test_a_changed_header_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = functools.partial(building._folder, backend="cuda", tools=toolchain("sm_90"), cache=tmp_path)
    with_piece, without = pieces.source("product_mma"), "void f();"
    before = folder(with_piece), folder(without)
    for file in INCLUDE.glob("*"):
        (tmp_path / file.name).write_text(file.read_text() + ("// changed\n" if file.name == "rag_mma.h" else ""))
    monkeypatch.setattr("rag_kernels.eval.build.headers.INCLUDE", tmp_path)
    assert folder(with_piece) != before[0] and folder(without) == before[1]


def test_the_page_of_pieces_names_every_function() -> None:
    told = (Path(__file__).parents[1] / "docs" / "cuda_pieces.md").read_text()
    text = "".join((INCLUDE / name).read_text() for name in HEADERS)
    functions = {n for n in re.findall(r"__device__ __forceinline__ \w+\*? (\w+)\(", text) if n != "NAME"}
    families = {name.split("_")[0] for name in functions}
    assert len(functions) > 25 and {"mbarrier", "tma", "cluster", "ldmatrix", "wgmma"} <= families
    assert not {name for name in families if name not in told}


@pytest.mark.skipif(not re.search("H100|H200", gpu_name() or ""), reason="there is no Hopper GPU")
@pytest.mark.parametrize("name", pieces.PIECES)
def test_a_piece_computes_what_pytorch_does(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = pieces.build_pieces((name,), "sm_90", tmp_path_factory.mktemp("pieces"))[name]
    assert isinstance(library, Path)
    greatest, allowed = pieces.worst(name, library, "cuda")
    assert greatest <= allowed
