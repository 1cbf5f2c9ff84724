"""An archive and a module file that version 59e82ac wrote (25 November 2026) open and run with today's.

`pieces/written_by_59e82ac.zip` holds what DuckDB's `EXPORT DATABASE` makes of the archive of
`generate examples/rmsnorm.py --device cpu --out best.py`, with the kernels of that problem alone, and `best.py`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from zipfile import ZipFile

import duckdb
import pytest
import torch
from cli_home import inside

from rag_kernels.archive import migrations
from rag_kernels.archive.records import KernelFilter
from rag_kernels.archive.store import FileArchive
from rag_kernels.eval.records import Passed

WRITTEN = Path(__file__).parent / "pieces" / "written_by_59e82ac.zip"
KERNEL = "k_2dec39d50c2d6357b033"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("before")
    with ZipFile(WRITTEN) as zipped:
        zipped.extractall(made)
    (made / "archive").mkdir()
    with pytest.MonkeyPatch.context() as patch, duckdb.connect(str(made / "archive" / "archive.duckdb")) as con:
        patch.chdir(made)
        con.execute((made / "schema.sql").read_text())
        con.execute((made / "load.sql").read_text())
        assert len(migrations.applied(con)) == 7 < len(migrations.MIGRATIONS)
    return made


def module_runs(file: Path) -> None:
    """Import a module file and require that its kernel is taken, and right."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model, own = module.ModelNew(*module.get_init_inputs()), module.Model(*module.get_init_inputs())
    own.load_state_dict(model.state_dict())
    inputs = module.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), own(*inputs), rtol=1e-4, atol=1e-4)
        assert module.COMPILED.fits(model, inputs)


def test_its_module_file_runs(home: Path) -> None:
    module_runs(home / "best.py")


def test_its_archive_opens_with_all_that_it_holds(home: Path) -> None:
    archive = FileArchive(home / "archive")
    kernels = archive.kernels(KernelFilter())
    assert KERNEL in {kernel.id for kernel in kernels} and len(kernels) == 4
    for kernel in kernels:
        _, judged = archive.evaluation(kernel.id)
        assert isinstance(judged.verdict, Passed) and judged.verdict.measurement.speedup_eager.median > 1
    [run] = archive.runs()
    assert [type(a.judged.verdict) for a in archive.attempts(run.id)] == [Passed, Passed]
    with archive.database.read() as con:
        assert migrations.applied(con) == list(migrations.MIGRATIONS)


def test_commands_take_it(home: Path) -> None:
    where = ("--archive", "archive", "--json")
    assert inside(home, "archive", "verify", *where).code == 0
    assert [row["type"] for row in inside(home, "report", "latest", *where).rows][-1] == "score"
    found = inside(home, "search", "root mean square of rows", *where)
    assert KERNEL in {row.get("kernel_id") for row in found.rows}, found
    exported = inside(home, "export", KERNEL, "--out", "again.py", *where)
    assert exported.code == 0, exported.err
    module_runs(home / "again.py")
