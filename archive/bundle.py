"""Bundles: kernels with their evaluations and lineage, to hand to someone else.

Comes in: an archive and a path. Goes out: one .zip (or a folder) with Parquet tables and every source as a file of
its own; or, the other way, rows in an archive. A bundle is checked whole before a row of it is taken: every content
id is computed again. Exporting what was imported gives the same bytes. Runs, failed attempts and prompts stay at home,
and so do texts whose licence does not let them be handed on.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from rag_kernels.archive import rows
from rag_kernels.archive.audit import lost_references, wrong_contents
from rag_kernels.archive.connection import literal
from rag_kernels.archive.database import MemoryDatabase
from rag_kernels.archive.filters import condition
from rag_kernels.archive.protocol import Tables
from rag_kernels.archive.records import KEPT_AT_HOME, ArchiveError, KernelFilter
from rag_kernels.archive.shared import parquet, write_parquet
from rag_kernels.eval.records import Candidate
from rag_kernels.eval.source_form import form_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FORMAT = "rag-kernels bundle 1"
WITH_CLAIMS = "rag-kernels bundle 2"  # the same and the table of claims; what needs none is written as before
WITH_TECHNIQUES = "rag-kernels bundle 3"  # claims, if there are any, and techniques with their evidence
WITH_SIZES = "rag-kernels bundle 4"  # the same, and the sizes that techniques are for
FORMATS = (FORMAT, WITH_CLAIMS, WITH_TECHNIQUES, WITH_SIZES)
LATER_TABLES = ("claims", "techniques", "technique_evidence")  # a bundle that has no rows of them lacks them
EVALUATION_DERIVED = """, stated_trust AS trust, judged_labels(judged) AS labels,
    told_ratio(judged, 'speedup_eager') AS told_eager, told_ratio(judged, 'speedup_compile') AS told_compile,
    least(told_eager, told_compile) AS told, told_floor(floor_fraction) AS told_floor"""
EVERYTHING = KernelFilter(include_retracted=True)
SOURCE_NAME = re.compile(r"sources/k_[0-9a-f]+\.(cu|cpp|py)")

# Candidates whose own licence, or that of their problem, keeps them at home. A candidate of this archive that was
# written for such a problem would take the problem's text along.
STAYING = f"""
    CREATE OR REPLACE TEMP TABLE staying AS
    WITH kept AS (FROM claims WHERE licence IN ({", ".join(map(literal, KEPT_AT_HOME))}))
    SELECT candidate_id AS id FROM kept WHERE candidate_id IS NOT NULL
    UNION
    SELECT e.kernel_id FROM evaluations AS e JOIN kept ON kept.problem_id = e.problem_id"""

# Techniques of `part` that are for sizes alone.
SIZED = "(FROM part WHERE len(row_sizes) > 0 OR len(tensor_sizes) > 0)"

# Evidence whose parent is told of, too.
PROVED = "SELECT * FROM technique_evidence WHERE child IN (FROM chosen) AND parent IN (FROM told)"

# What a bundle holds, in the order in which it is read back. `chosen`, `told` and `written` are temporary tables: the
# kernels that are exported, these together with their ancestors, and the endings of the files that hold these sources.
TABLES: dict[str, str] = {
    "candidates": "SELECT id, tier, backend, extension FROM candidates JOIN written USING (id)",
    "kernels": """
        SELECT id, functional_id, idea_id, writer, model, coalesce(nullif(licence, ''), $licence) AS licence,
            coalesce(nullif(attribution, ''), $attribution) AS attribution, created_at
        FROM kernels WHERE id IN (FROM chosen)""",
    "ideas": "SELECT * FROM ideas WHERE id IN (SELECT idea_id FROM kernels WHERE id IN (FROM chosen))",
    "functionals": """
        SELECT * FROM functionals
        WHERE id IN (SELECT functional_id FROM evaluations WHERE kernel_id IN (FROM chosen))
            OR id IN (SELECT functional_id FROM kernels WHERE id IN (FROM chosen))
            OR problem_id IN (SELECT problem_id FROM claims WHERE candidate_id IN (FROM chosen))""",
    "problems": """
        SELECT p.* FROM problems AS p
        WHERE p.id IN (SELECT problem_id FROM evaluations WHERE kernel_id IN (FROM chosen))
            OR p.id IN (SELECT problem_id FROM claims WHERE candidate_id IN (FROM chosen))
            OR p.id IN (SELECT f.problem_id FROM kernels AS k JOIN functionals AS f ON f.id = k.functional_id
                        WHERE k.id IN (FROM chosen))
            OR p.id IN (SELECT i.problem_id FROM kernels AS k JOIN ideas AS i ON i.id = k.idea_id
                        WHERE k.id IN (FROM chosen))""",
    "evaluations": """
        SELECT * EXCLUDE (trust, labels, told, told_eager, told_compile, told_floor)
        FROM evaluations WHERE kernel_id IN (FROM chosen)""",
    "claims": "SELECT * FROM claims WHERE candidate_id IN (FROM chosen)",
    "edges": "SELECT * FROM edges WHERE child IN (FROM told)",
    "retractions": "SELECT * FROM retractions WHERE kernel_id IN (FROM chosen)",
    "techniques": f"""
        SELECT * FROM techniques WHERE id IN ({PROVED.replace("*", "technique_id")})""",
    "technique_evidence": PROVED,
}


def export(
    archive: Tables,
    path: Path,
    where: KernelFilter = EVERYTHING,
    *,
    licence: str = "",
    attribution: str = "",
) -> dict[str, int]:
    """Write the kernels that pass the filter and return the number of rows of each table.

    `path` is a .zip, which is replaced, or else a folder, which must be new or empty. Licence and attribution are
    given to kernels that have none. Raises ArchiveError when the path cannot be written or the folder is not empty.
    """
    if path.suffix != ".zip" and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ArchiveError(f"{path} exists already: name a new folder, or a file that ends in .zip.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=path.parent) as scratch:
            folder = Path(scratch) / "bundle"
            counts = _write_tables(archive, folder, where, {"licence": licence, "attribution": attribution})
            if path.suffix == ".zip":
                _pack(folder, Path(scratch) / "bundle.zip").replace(path)
            else:
                folder.replace(path)
    except OSError as error:
        raise ArchiveError(f"The bundle {path} cannot be written: {error}.") from error
    return counts


def import_bundle(archive: Tables, path: Path, *, trust_bundle: bool = False) -> dict[str, int]:
    """Store a bundle and return the number of new rows of each table; what is there already stays as it is.

    Kernels come in as `claimed`, whatever the bundle says. With `trust_bundle` they keep the trust of where they were
    judged: for bundles from people whose judge you trust as your own. Raises ArchiveError, before a row is stored, when
    the bundle cannot be read or anything in it is wrong.
    """
    if not path.exists():
        raise ArchiveError(f"There is no bundle {path}; check the path.")
    with tempfile.TemporaryDirectory(prefix="rag-kernels-") as scratch:
        folder = _unpack(path, Path(scratch)) if path.is_file() else path
        checked = Path(scratch) / "checked"
        _check(path, folder, checked)
        with archive.database.write() as con:
            counts = _take(con, checked, trust_bundle)
    return counts


def _write_tables(archive: Tables, folder: Path, where: KernelFilter, extra: dict[str, str]) -> dict[str, int]:
    (folder / "sources").mkdir(parents=True)
    sql, parameters = condition(where)
    limit = "" if where.limit is None else f"LIMIT {int(where.limit)}"
    counts, sized = dict[str, int](), 0
    with archive.database.read() as con:
        con.execute(STAYING)
        con.execute("CREATE OR REPLACE TEMP TABLE chosen (id VARCHAR)")
        con.execute(
            f"INSERT INTO chosen SELECT DISTINCT id FROM kernel_cards WHERE {sql} "
            f"AND id NOT IN (FROM staying) ORDER BY id {limit}",
            parameters,
        )
        con.execute(
            "CREATE OR REPLACE TEMP TABLE told AS FROM chosen UNION SELECT ancestor_id FROM ancestry "
            "WHERE kernel_id IN (FROM chosen) AND ancestor_id NOT IN (FROM staying)"
        )
        if con.execute("SELECT 1 FROM chosen").fetchone() is None:
            raise ArchiveError(
                "No kernel passes the filter, so there is nothing to export. Kernels whose licence does not let them "
                "be handed on (GPU MODE's) are never exported."
            )
        _write_sources(con, folder / "sources")
        for table, select in TABLES.items():
            told = re.sub(r"\$(licence|attribution)", lambda found: literal(extra[found[1]]), select)
            con.execute(f"CREATE OR REPLACE TEMP TABLE part AS {told}")
            counts[table] = _count(con, "part")
            if table == "techniques" and not (sized := _count(con, SIZED)):  # as versions before sizes read it
                con.execute("ALTER TABLE part DROP COLUMN row_sizes")
                con.execute("ALTER TABLE part DROP COLUMN tensor_sizes")
            if counts[table] or table not in LATER_TABLES:
                write_parquet(con, "FROM part ORDER BY ALL", folder / f"{table}.parquet")
        for table in ("staying", "chosen", "told", "written", "part"):
            con.execute(f"DROP TABLE {table}")
    written = {table: count for table, count in counts.items() if count or not table.startswith("technique")}
    techniques = (WITH_SIZES if sized else WITH_TECHNIQUES) if counts["techniques"] else ""
    format_ = techniques or (WITH_CLAIMS if counts["claims"] else FORMAT)
    manifest = {"format": format_, "rows": written}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return counts


def _write_sources(con: DuckDBPyConnection, folder: Path) -> None:
    """Write a file for each source in `told`, and keep its ending in `written`."""
    endings: list[tuple[str, str]] = []
    for name, tier, backend, source in con.execute(
        "SELECT id, tier, backend, source FROM candidates WHERE id IN (FROM told)"
    ).fetchall():
        extension = form_of(Candidate(source, tier, backend)).suffix.removeprefix(".")
        (folder / f"{name}.{extension}").write_bytes(source.encode())
        endings.append((name, extension))
    con.execute("CREATE OR REPLACE TEMP TABLE written (id VARCHAR, extension VARCHAR)")
    con.execute(
        "INSERT INTO written SELECT unnest(?::VARCHAR[]), unnest(?::VARCHAR[])",
        [[name for name, _ in endings], [extension for _, extension in endings]],
    )


def _pack(folder: Path, target: Path) -> Path:
    """Zip a folder so that equal content gives equal bytes."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            bundle.writestr(entry, file.read_bytes())
    return target


def _unpack(path: Path, scratch: Path) -> Path:
    """Extract what belongs into a bundle from a zip, and nothing else."""
    folder = scratch / "bundle"
    (folder / "sources").mkdir(parents=True)
    known = {"manifest.json", *(f"{table}.parquet" for table in TABLES)}
    try:
        with zipfile.ZipFile(path) as bundle:
            for name in bundle.namelist():
                if name in known or SOURCE_NAME.fullmatch(name):
                    with bundle.open(name) as packed, (folder / name).open("wb") as unpacked:
                        shutil.copyfileobj(packed, unpacked)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ArchiveError(f"{path} is not a whole bundle: {error}. Fetch or export it again.") from error
    return folder


def _check(path: Path, folder: Path, checked: Path) -> None:
    """Load a bundle into an archive of its own, verify it there, and write its complete tables to `checked`."""
    import duckdb

    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest.get("format") not in FORMATS:
            raise ArchiveError(
                f"{path} has the format {manifest.get('format')!r}; this version reads {FORMATS[0]!r} to "
                f"{FORMATS[-1]!r}. Upgrade rag-kernels."
            )
        with MemoryDatabase().write() as con:
            for table in TABLES:
                if table not in LATER_TABLES or manifest["rows"].get(table):
                    con.execute(_load_sql(table, folder))
            wrong = wrong_contents(con)
            wrong += [sentence for table, sentence in lost_references(con) if table != "edges"]
            if wrong:
                raise ArchiveError(f"{path} is not what it claims to be, so nothing was imported. {wrong[0]}")
            checked.mkdir()
            for table in TABLES:
                write_parquet(con, f"FROM {table}", checked / f"{table}.parquet")
    except (OSError, ValueError, duckdb.Error) as error:
        raise ArchiveError(f"{path} cannot be read as a bundle: {error}. Fetch or export it again.") from error


def _load_sql(table: str, folder: Path) -> str:
    file = f"read_parquet({literal(f'{folder / table}.parquet')})"
    if table == "candidates":
        texts = f"read_text({literal(f'{folder}/sources/*')})"
        return (
            f"INSERT INTO candidates BY NAME SELECT c.id, c.tier, c.backend, t.content AS source FROM {file} AS c "
            f"JOIN {texts} AS t ON parse_filename(t.filename) = concat(c.id, '.', c.extension)"
        )
    derived = EVALUATION_DERIVED if table == "evaluations" else ""
    return f"INSERT INTO {table} BY NAME SELECT *{derived} FROM {file}"


def _take(con: DuckDBPyConnection, checked: Path, trust_bundle: bool) -> dict[str, int]:
    """Insert rows that are new; the bundle's word on kernels that are there already counts only if trusted."""
    con.execute("CREATE OR REPLACE TEMP TABLE present AS SELECT id FROM kernels")
    counts: dict[str, int] = {}
    for table in TABLES:
        file = parquet(con, checked / f"{table}.parquet", like=table)
        select = f"SELECT * FROM {file}"
        if not trust_bundle:
            if table == "evaluations":
                select = f"SELECT * REPLACE ('claimed' AS trust) FROM {file}"
            if table == "retractions":
                select += " WHERE kernel_id NOT IN (FROM present)"
        elif table == "evaluations":
            con.execute(f"UPDATE evaluations SET trust = stated_trust WHERE id IN (SELECT id FROM {file})")
        counts[table] = rows.insert_select(con, table, select)
    con.execute("DROP TABLE present")
    return counts


def _count(con: DuckDBPyConnection, table: str) -> int:
    return int(con.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])
