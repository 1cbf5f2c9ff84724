"""Techniques: what helps against which bottleneck, with the kernels that prove it and the attempts that were shown it.

Comes in: an archive. Goes out: `Technique` records with their `Evidence` and how attempts fared that saw them, and
rows. Cards are never changed: a revised one is another row, and the newest of a title counts. Knows nothing of how a
technique is recognised in a source, and which ones suit a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from rag_kernels.archive import rows
from rag_kernels.archive.duck import now
from rag_kernels.archive.protocol import Tables
from rag_kernels.eval import codec
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.records import LATER


@dataclass(frozen=True, slots=True)
class Technique:
    """Hold a card. Empty tuples stand for any; `signs` are regular expressions for sources that use it.

    `row_sizes` and `tensor_sizes` are the least and the most elements of a row, and of the largest tensor, that it is
    meant for, or the least alone; `sizes` are words for what these do not say.
    """

    title: str
    advice: str
    bottlenecks: tuple[str, ...] = ()
    backends: tuple[str, ...] = ("cpu", "cuda")
    operators: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    sizes: str = ""
    signs: tuple[str, ...] = ()
    origin: str = "seed"  # or "lineage"
    row_sizes: tuple[int, ...] = field(default=(), metadata=LATER)
    tensor_sizes: tuple[int, ...] = field(default=(), metadata=LATER)

    @property
    def id(self) -> str:
        return content_id("t", codec.dumps(self))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Hold a kernel that uses a technique (`child`) and one without that it was made from, or that was made from it,
    with what the use gained; with the problem and the device.
    """

    child: str
    parent: str
    device_key: str
    gain: float
    problem_id: str = ""
    problem_name: str = ""
    functional_source: str = ""
    operators: tuple[str, ...] = ()
    device_name: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()  # of the problem's tensors


@dataclass(frozen=True, slots=True)
class KnownTechnique:
    """Hold a card with its evidence, and how many attempts that were shown it beat the better baseline."""

    technique: Technique
    evidence: tuple[Evidence, ...] = ()
    shown: int = 0
    won: int = 0
    created_at: str = field(default="", compare=False)


codec.register(Technique)

COLUMNS = tuple(Technique.__dataclass_fields__)
LISTS = ("bottlenecks", "backends", "operators", "dtypes", "architectures", "signs", "row_sizes", "tensor_sizes")

KNOWN = """
    SELECT * FROM techniques
    QUALIFY row_number() OVER (PARTITION BY title ORDER BY created_at DESC, id) = 1
    ORDER BY title"""
EVIDENCE = """
    SELECT t.technique_id, t.child, t.parent, t.device_key, t.gain, min(p.id) AS problem_id,
        min(p.name) AS problem_name, min(f.source) AS functional_source, min(f.operators) AS operators,
        min(e.device_name) AS device_name, min(f.shapes) AS shapes
    FROM technique_evidence AS t
    JOIN evaluations AS e ON e.kernel_id = t.child AND e.device_key = t.device_key
    JOIN problems AS p ON p.id = e.problem_id
    JOIN functionals AS f ON f.id = e.functional_id
    WHERE t.child NOT IN (SELECT kernel_id FROM retractions) AND t.parent NOT IN (SELECT kernel_id FROM retractions)
    GROUP BY t.technique_id, t.child, t.parent, t.device_key, t.gain
    ORDER BY t.gain DESC, t.child"""
USES = """
    SELECT id, count(*) AS shown, count(*) FILTER (won) AS won
    FROM (
        SELECT unnest(a.techniques) AS id, a.verdict = 'passed' AND coalesce(e.told > 1, false) AS won
        FROM attempts AS a LEFT JOIN evaluations AS e ON e.id = a.evaluation_id
        WHERE len(a.techniques) > 0
    ) GROUP BY id"""
# A child and the kernel that it was made from, each by its best time on a device that both were timed on, for the same
# problem. `parent` and `crossover` alone: what was merely in view proves nothing.
PAIRS = """
    WITH best AS (
        SELECT kernel_id, problem_id, device_key, min(candidate_us) AS us
        FROM evaluations WHERE candidate_us > 0 GROUP BY ALL
    )
    SELECT DISTINCT d.child, d.source AS parent, c.device_key, p.us / c.us AS gain, child.source AS child_source,
        parent.source AS parent_source, coalesce(i.text, '') AS idea, child.backend, f.operators, f.dtypes,
        c.problem_id, f.source AS functional_source, f.shapes
    FROM edges AS d
    JOIN best AS c ON c.kernel_id = d.child
    JOIN best AS p ON p.kernel_id = d.source AND p.problem_id = c.problem_id AND p.device_key = c.device_key
    JOIN candidates AS child ON child.id = d.child
    JOIN candidates AS parent ON parent.id = d.source
    JOIN kernels AS k ON k.id = d.child
    JOIN functionals AS f ON f.id = k.functional_id
    LEFT JOIN ideas AS i ON i.id = k.idea_id
    WHERE d.relation IN ('parent', 'crossover') AND d.child <> d.source
    ORDER BY d.child, parent, c.device_key"""


@dataclass(frozen=True, slots=True)
class Pair:
    """Hold a kernel and the one that it was made from, both timed on one problem and device."""

    child: str
    parent: str
    device_key: str
    gain: float
    child_source: str
    parent_source: str
    idea: str
    backend: str
    operators: tuple[str, ...]
    dtypes: tuple[str, ...]
    problem_id: str
    functional_source: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()


def known_techniques(archive: Tables) -> list[KnownTechnique]:
    """Return all cards, the newest of each title, with their evidence and uses."""
    with archive.database.read() as con:
        cards, found, uses = (rows.query(con, sql) for sql in (KNOWN, EVIDENCE, USES))
    evidence: dict[str, list[Evidence]] = {}
    for row in found:
        evidence.setdefault(row.pop("technique_id"), []).append(
            Evidence(**{**row, "operators": tuple(row["operators"]), "shapes": tuple(map(tuple, row["shapes"]))})
        )
    seen = {row["id"]: (int(row["shown"]), int(row["won"])) for row in uses}
    return [
        KnownTechnique(
            technique_of(row), tuple(evidence.get(row["id"], ())), *seen.get(row["id"], (0, 0)), row["created_at"]
        )
        for row in cards
    ]


def add_techniques(archive: Tables, cards: Sequence[Technique]) -> int:
    """Store cards that are not there yet, and return how many are new."""
    created_at = now()
    new = [{"id": card.id, **_columns(card), "created_at": created_at} for card in cards]
    with archive.database.write() as con:
        return rows.insert_many(con, "techniques", new)


def add_evidence(archive: Tables, found: Sequence[tuple[Technique, Pair]]) -> int:
    """Store what pairs prove of cards, and return how much of it is new."""
    created_at = now()
    new = {
        (card.id, pair.child, pair.parent, pair.device_key): {
            "technique_id": card.id,
            "child": pair.child,
            "parent": pair.parent,
            "device_key": pair.device_key,
            "gain": pair.gain,
            "created_at": created_at,
        }
        for card, pair in found
    }
    with archive.database.write() as con:
        return rows.insert_many(con, "technique_evidence", list(new.values()))


def pairs(archive: Tables) -> list[Pair]:
    """Return every kernel with the one that it was made from, where both were timed on the same problem and device."""
    with archive.database.read() as con:
        found = rows.query(con, PAIRS)
    lists = ("operators", "dtypes")
    return [
        Pair(**{**row, **{name: tuple(row[name]) for name in lists}, "shapes": tuple(map(tuple, row["shapes"]))})
        for row in found
    ]


def technique_of(row: rows.Row) -> Technique:
    """Return the card of a row, whose id can be worked out again."""
    values = {name: row[name] for name in COLUMNS}
    return Technique(**{**values, **{name: tuple(values[name] or ()) for name in LISTS}})


def _columns(card: Technique) -> rows.Row:
    return {name: list(value) if name in LISTS else value for name, value in asdict(card).items()}
