"""The history of the schema: named steps, in order, only ever appended to.

Comes in: a DuckDB connection. Goes out: the same database at the newest schema, with a row in `migrations` for
each step. The steps are the SQL files in `schema/` and change tables; views and macros hold no data, stand once in
`schema/views.sql`, and are made anew after the newest step. Knows nothing of files, locks or records.

No table has an index. DuckDB keeps one for each PRIMARY KEY, and with it writes up to 122,880 rows of a table anew
whenever a row is added and the file closed: 0.6 s at 30,000 kernels, 10 ms without. Writers take turns and look first
(`rows.insert`), which keeps keys unique as well, and `archive verify` checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rag_kernels.archive.records import ArchiveError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MIGRATIONS: tuple[str, ...] = (
    "001_tables",
    "002_views",
    "003_labels",
    "004_claims",
    "005_briefs",
    "006_shared",
    "007_keys",
    "008_told",
    "009_techniques",
    "010_fragile",
    "011_precision",
    "012_sizes",
)
SCHEMA = Path(__file__).parent / "schema"
INDEXED = """
    SELECT table_name, string_agg(
        format('"{}" {} {}', column_name, data_type, if(is_nullable, '', 'NOT NULL')), ', ' ORDER BY column_index
    )
    FROM duckdb_columns()
    WHERE table_name IN (SELECT table_name FROM duckdb_tables() WHERE index_count > 0)
    GROUP BY table_name"""
COMMENTS = """
    SELECT format('COMMENT ON {} IS ''{}''', what, replace(comment, '''', ''''''))
    FROM (
        SELECT format('TABLE "{}"', table_name) AS what, comment FROM duckdb_tables() WHERE table_name = $table
        UNION ALL
        SELECT format('COLUMN "{}"."{}"', table_name, column_name), comment FROM duckdb_columns()
        WHERE table_name = $table
    )
    WHERE comment <> ''"""


def applied(con: DuckDBPyConnection) -> list[str]:
    """Return names of the steps that this database has taken, in order; empty for a new file."""
    known = con.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'migrations'").fetchone()
    if known is None:
        return []
    return [name for (name,) in con.execute("SELECT name FROM migrations ORDER BY position").fetchall()]


def pending(con: DuckDBPyConnection, names: Sequence[str] = MIGRATIONS) -> list[str]:
    """Return the steps that are still to be taken.

    Raises ArchiveError when the database has taken steps that this version does not know.
    """
    done = applied(con)
    unknown = [name for name in done if name not in names]
    if unknown:
        raise ArchiveError(
            f"This archive was written by a newer version of rag-kernels (it has the schema step {unknown[-1]!r}). "
            "Upgrade with `pip install -U rag-kernels`, or choose another archive folder."
        )
    return [name for name in names if name not in done]


def migrate(con: DuckDBPyConnection, names: Sequence[str] = MIGRATIONS, schema: Path = SCHEMA) -> list[str]:
    """Take all pending steps and return their names.

    Each is a transaction: DuckDB does not let one change a table's rows and then its columns. A file whose migration
    was cut short goes on with the next step.
    """
    steps = pending(con, names)
    if not steps:
        return []
    con.execute("CREATE TABLE IF NOT EXISTS migrations (position INTEGER NOT NULL, name VARCHAR, applied_at VARCHAR)")
    con.execute("COMMENT ON TABLE migrations IS 'Steps of the schema that this file has taken.'")
    con.execute("COMMENT ON COLUMN migrations.position IS 'order'")
    con.execute("COMMENT ON COLUMN migrations.name IS 'a file in archive/schema/'")
    con.execute("COMMENT ON COLUMN migrations.applied_at IS 'when this file took the step'")
    for name in steps:
        con.execute("BEGIN")
        if name == "007_keys":
            drop_indexes(con)
        con.execute((schema / f"{name}.sql").read_text())
        if name == MIGRATIONS[-1]:
            con.execute((schema / "views.sql").read_text())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        con.execute("INSERT INTO migrations SELECT count(*) + 1, ?, ? FROM migrations", [name, now])
        con.execute("COMMIT")
    return steps


def drop_indexes(con: DuckDBPyConnection) -> None:
    """Rebuild the tables that have an index: DuckDB cannot remove it."""
    for table, columns in con.execute(INDEXED).fetchall():
        comments = con.execute(COMMENTS, {"table": table}).fetchall()
        con.execute(f"ALTER TABLE {table} RENAME TO indexed")
        con.execute(f"CREATE TABLE {table} ({columns})")
        con.execute(f"INSERT INTO {table} FROM indexed")
        con.execute("DROP TABLE indexed")
        for (comment,) in comments:
            con.execute(comment)
