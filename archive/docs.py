"""The reference page of the archive's tables: `python -m rag_kernels.archive.docs > docs/reference/archive_schema.md`.

Comes in: nothing but the newest schema, whose tables, views and columns carry their comments. Goes out:
Markdown. A test fails when the file is not what this prints.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rag_kernels.archive.migrations import MIGRATIONS, SCHEMA, migrate
from rag_kernels.archive.rows import KEYS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PREFACE = """# The archive: tables, views and macros

What to ask an archive in SQL, column by column.

An archive is a folder: `archive.duckdb` holds everything, `chroma/` is an index over its vectors that is rebuilt
whenever it is missing, behind or damaged. It is at `$RAG_KERNELS_ARCHIVE`, else at
`~/.local/share/rag-kernels/archive`. Several processes may use it at once: each transaction opens the file, and waits
while another process has it open.

Look into it with DuckDB 1.4 or newer:

    duckdb -readonly archive.duckdb "SELECT place, kernel_id, speedup FROM leaderboard WHERE problem_name = 'softmax'"

Ids are hashes of contents, so the same source has the same id in every archive, and two archives merge without
duplicates. Rows are added, never changed, with two exceptions: a run gets its end, and the trust of an imported
evaluation may rise. Times are ISO 8601 in UTC, as text (`created_at::TIMESTAMPTZ` makes them times). Columns named
`record` and `judged` hold whole records as text; infinite numbers in them are written `Infinity`, as Python does.

How far a kernel is trusted: *claimed* (imported, not judged here), *compiled* (built, but the device it is for was
not there), *verified* (right on every check, and timed), *confirmed* (passed again in a fresh process).

This page is made by `python -m rag_kernels.archive.docs > docs/reference/archive_schema.md`.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    import duckdb

    with duckdb.connect(":memory:") as con:
        migrate(con)
        tables = con.execute("SELECT table_name, comment FROM duckdb_tables() ORDER BY table_oid").fetchall()
        views = con.execute(
            "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal ORDER BY view_oid"
        ).fetchall()
        macros = con.execute(
            "SELECT function_name, comment FROM duckdb_functions() WHERE NOT internal ORDER BY function_name"
        ).fetchall()
        parts = [
            PREFACE,
            "## Tables\n",
            *(_table(con, name, comment) for name, comment in tables),
            "## Views\n",
            *(_view(con, name, comment) for name, comment in views),
            "## Macros\n",
            "\n".join(_macro(con, name, comment) for name, comment in macros) + "\n",
            "## Migrations\n",
            "\n".join(f"{n}. `{name}` ({SCHEMA.name}/{name}.sql)" for n, name in enumerate(MIGRATIONS, 1)) + "\n",
        ]
    return "\n".join(parts)


def _table(con: DuckDBPyConnection, name: str, comment: str) -> str:
    columns = con.execute(
        "SELECT column_name, data_type, is_nullable, comment FROM duckdb_columns() WHERE table_name = ? "
        "ORDER BY column_index",
        [name],
    ).fetchall()
    key = ", ".join(f"`{column}`" for column in KEYS[name])
    lines = [f"### {name}\n", f"{comment or ''} Key: {key}.\n", "| column | type | |", "|---|---|---|"]
    for column, kind, nullable, remark in columns:
        shown = kind.replace("|", "\\|") + (", may be null" if nullable else "")
        lines.append(f"| `{column}` | {shown} | {remark or ''} |")
    return "\n".join(lines) + "\n"


def _view(con: DuckDBPyConnection, name: str, comment: str) -> str:
    lines = [f"### {name}\n", f"{comment or ''}\n", "| column | type | |", "|---|---|---|"]
    lines += [f"| `{column}` | {kind} | {remark} |" for column, kind, remark in view_columns(con, name)]
    return "\n".join(lines) + "\n"


def view_columns(con: DuckDBPyConnection, view: str) -> list[tuple[str, str, str]]:
    """Return name, type and comment of each column; one without a comment has that of the table's column of its
    name.
    """
    return con.execute(
        """
        SELECT column_name, data_type, coalesce(c.comment, inherited.comment)
        FROM duckdb_columns() AS c
        LEFT JOIN (
            SELECT d.column_name, any_value(d.comment) AS comment
            FROM duckdb_columns() AS d JOIN duckdb_tables() AS t USING (table_oid)
            GROUP BY d.column_name
            HAVING count(DISTINCT d.comment) = 1
        ) AS inherited USING (column_name)
        WHERE c.table_name = ?
        ORDER BY column_index
        """,
        [view],
    ).fetchall()


def _macro(con: DuckDBPyConnection, name: str, comment: str) -> str:
    (parameters,) = con.execute("SELECT parameters FROM duckdb_functions() WHERE function_name = ?", [name]).fetchall()[
        0
    ]
    return f"- `{name}({', '.join(parameters)})`: {comment}"


if __name__ == "__main__":
    sys.stdout.write(page())
