"""The one table of ATen operators: real names, traits that torch's own schemas bear out, and no second table."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import problem

from rag_kernels.eval.records import FunctionalProblem, Node, Ref
from rag_kernels.eval.traits import aten
from rag_kernels.eval.traits.aten import OPERATORS, Operator, base_name, operator
from rag_kernels.eval.traits.index_ties import first_of_equals
from rag_kernels.ingest.description import vocabulary
from rag_kernels.ingest.description.features import FLOPS
from rag_kernels.ingest.graphs import recurrent, spelling
from rag_kernels.offline.graph.decompositions import OF_OURS
from rag_kernels.offline.lowering.coverage import RULES
from rag_kernels.offline.lowering.pointwise import POINTWISE
from rag_kernels.offline.lowering.which_products import PRODUCTS

ROOT = Path(__file__).parents[1]
FILES = [f for top in ("eval", "archive", "ingest", "rag_kernels", "app") for f in sorted((ROOT / top).rglob("*.py"))]
PYTHON_LEVEL = {"getitem"}  # recorded graphs take a result of several apart with it
NO_ALIAS_IN_SCHEMA = {"_unsafe_view"}  # a view by what it does; its schema promises a tensor of its own
ONLY_IN_PYTHON = {"input", "inplace", "size_average", "reduce", "weight", "_stacklevel"}  # parameters of `F`
MOST = 5  # names of operators that may stand together outside the table
# Names that are those of operators by chance, or words of another language.
ALLOWED = {
    "ingest/functional/ranges.py": "which values an index is made of; nobody else asks",
    "ingest/description/vocabulary.py": "words for retrieval; see its docstring",
}


def overloads(name: str) -> list[Any]:
    """The schemas of an operator, without those that write to an argument named `out`."""
    packet = getattr(torch.ops.aten, name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    return [s for s in schemas if not any(a.is_out for a in s.arguments)]


def of_tensors(name: str) -> list[Any]:
    """Those of its overloads that take a tensor first, or several; a list in place is no tensor."""
    schemas = [s for s in overloads(name) if s.arguments and "Tensor" in str(s.arguments[0].type)]
    return [s for s in schemas if not (s.is_mutable and "List" in str(s.arguments[0].type))]


def having(trait: str) -> list[str]:
    """Names of the operators of torch with a trait."""
    return sorted(name for name, op in OPERATORS.items() if getattr(op, trait) and name not in PYTHON_LEVEL)


def tags(name: str) -> set[torch.Tag]:
    packet = getattr(torch.ops.aten, name)
    return {tag for overload in packet.overloads() for tag in getattr(packet, overload).tags}


def arguments(name: str) -> set[str]:
    return {a.name for schema in overloads(name) for a in schema.arguments}


def test_every_name_is_an_operator_of_torch_and_stands_in_one_row() -> None:
    assert {name for name in OPERATORS if not hasattr(torch.ops.aten, name)} == PYTHON_LEVEL
    assert [n for n, rows in Counter(n for row, _ in aten._ROWS for n in row.split()).items() if rows > 1] == []
    assert all(op.name == name for name, op in OPERATORS.items())


def test_an_operator_is_found_by_name_or_overload() -> None:
    assert [base_name(op) for op in ("add", "aten.add.Tensor", "torch.tensor", "getitem")] == [
        "add",
        "add",
        "tensor",
        "getitem",
    ]
    assert operator("aten.add.Tensor") is operator("add") is OPERATORS["add"]
    assert operator("aten.unheard_of.default") == Operator(name="unheard_of")


@pytest.mark.parametrize("name", sorted({*having("view"), *having("pieces")} - NO_ALIAS_IN_SCHEMA))
def test_a_view_returns_an_alias(name: str) -> None:
    schemas = of_tensors(name)
    assert schemas and all(s.returns[0].alias_info for s in schemas if s.arguments[0].alias_info)
    assert any(s.arguments[0].alias_info for s in schemas)
    several = ["[]" in str(s.returns[0].type) or "List" in str(s.returns[0].type) for s in schemas]
    assert set(several) == {operator(name).pieces}


@pytest.mark.parametrize("name", [n for n in OPERATORS if n.endswith("_") and not n.startswith("__")])
def test_an_operator_in_place_writes_to_its_first_argument(name: str) -> None:
    for schema in of_tensors(name):
        assert schema.arguments[0].alias_info.is_write
    left = operator(name).leaves or name.removesuffix("_")
    assert left == "copy" or not any(s.is_mutable for s in overloads(left))


def test_only_operators_in_place_write_to_a_tensor() -> None:
    writing = {n for n in OPERATORS if n not in PYTHON_LEVEL and any(s.is_mutable for s in of_tensors(n))}
    assert all(name.endswith("_") for name in {*writing, *having("leaves")})


@pytest.mark.parametrize("name", having("defaults"))
def test_defaults_are_those_of_the_schema(name: str) -> None:
    [schema] = overloads(name)
    for position, value in operator(name).defaults:
        assert schema.arguments[position].default_value == value


@pytest.mark.parametrize("name", having("dims"))
def test_dimensions_are_arguments_of_that_name(name: str) -> None:
    named = {i: {s.arguments[i].name for s in of_tensors(name) if len(s.arguments) > i} for i in operator(name).dims}
    assert all(any(argument.startswith("dim") for argument in found) for found in named.values()), named


@pytest.mark.parametrize("name", having("commutative"))
def test_what_commutes_takes_two_tensors(name: str) -> None:
    overload = getattr(getattr(torch.ops.aten, name), operator(name).commutative)
    assert [str(a.type) for a in overload._schema.arguments[:2]] == ["Tensor", "Tensor"]
    left, right = torch.randn(50), torch.randn(50)
    assert torch.equal(overload(left, right), overload(right, left))


@pytest.mark.parametrize("name", having("alias_of"))
def test_another_name_has_the_same_overloads(name: str) -> None:
    of = operator(name).alias_of
    assert of in OPERATORS and not operator(of).alias_of
    own = {s.overload_name for s in of_tensors(name)}
    assert own <= {s.overload_name for s in of_tensors(of)}


@pytest.mark.parametrize("name", having("random_if"))
def test_flags_of_random_numbers_are_arguments(name: str) -> None:
    assert set(operator(name).random_if) <= arguments(name)


@pytest.mark.parametrize("name", [n for n, op in OPERATORS.items() if op.added is not None or op.one_hot])
def test_operands_of_products_are_tensors(name: str) -> None:
    op = operator(name)
    assert op.cost == "product"
    types = [str(a.type) for a in overloads(name)[0].arguments]
    added = [] if op.added is None else [op.added]
    assert all("Tensor" in types[position] for position in (*added, *(p for p, _ in op.one_hot)))
    assert op.added not in {p for p, _ in op.one_hot}


@pytest.mark.parametrize("name", having("class_numbers"))
def test_losses_of_class_numbers_have_them_second_and_leave_one_out(name: str) -> None:
    schemas = of_tensors(name)
    assert schemas and all([a.name for a in s.arguments][1] == "target" for s in schemas)
    assert all([a.name for a in s.arguments].index("ignore_index") == 4 for s in schemas)


@pytest.mark.parametrize("name", having("in_functional"))
def test_functions_bear_the_names_of_the_schema(name: str) -> None:
    function = getattr(torch.nn.functional, name)
    try:
        parameters = set(inspect.signature(function).parameters)
    except ValueError:  # built in, so it is the schema itself
        return
    assert parameters == {"args", "kwargs"} or parameters - ONLY_IN_PYTHON <= arguments(name)


def test_traits_do_not_contradict_each_other() -> None:
    for op in OPERATORS.values():
        assert not (op.view and op.pieces), op.name
        assert not (op.keeps_name and not op.alias_of), op.name
        assert op.cost == "factory" or not op.names_device, op.name
        assert op.cost in {"factory", "arithmetic"} or not op.sized, op.name
        assert op.cost in {"product", "recurrent"} or op.name == "rrelu" or not op.random_if, op.name
        assert op.alias_of == "" or op == Operator(name=op.name, alias_of=op.alias_of, keeps_name=op.keeps_name)
    assert {op.cost for op in OPERATORS.values()} == {"arithmetic", "layout", "factory", *FLOPS}


def test_views_take_no_memory_of_their_own() -> None:
    """But for spellings that recording replaces, which `no_bytes` need not know."""
    replaced = {
        n for n, op in OPERATORS.items() if op.reshape or op.same_value or op.transposes in {"matrix", "adjoint"}
    }
    assert {n for n, op in OPERATORS.items() if (op.view or op.pieces) and not op.no_bytes} <= replaced


def test_what_names_the_device_takes_one_and_needs_no_tensor() -> None:
    for name in having("names_device"):
        assert len(of_tensors(name)) < len(overloads(name)) and "device" in arguments(name), name


def test_random_factories_are_those_that_torch_tags() -> None:
    tagged = {n for n in having("sized") if torch.Tag.nondeterministic_seeded in tags(n)}
    assert tagged == {"rand", "randn", "randint", "rand_like"}


TABLES: dict[str, set[str]] = {
    "rules of loops": {*RULES, *POINTWISE, *PRODUCTS} - OF_OURS,
    "spelling": {
        *spelling.INFIX,
        *spelling.PREFIX,
        *spelling.METHODS,
        *spelling.F_OTHER,
        *spelling.OPERAND_NAMES,
    },
    "recurrence": set(recurrent._RULES),
    "words": {
        word for words in vocabulary.FAMILIES.values() for word in words.split() if hasattr(torch.ops.aten, word)
    },
}


@pytest.mark.parametrize("table", TABLES)
def test_other_tables_speak_of_these_operators(table: str) -> None:
    assert TABLES[table] - OPERATORS.keys() == set()


def test_rules_for_recurrence_are_all_there() -> None:
    assert set(recurrent._RULES) == {name for name, op in OPERATORS.items() if op.cost == "recurrent"}


def test_functions_that_count_multiply_adds_are_all_there() -> None:
    assert set(FLOPS) == {"product", "recurrent"}


def groups(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Lines and words of literal sets, tuples and lists of strings, and of strings of words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            yield node.lineno, [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value.split()


def known(word: str) -> bool:
    return word in OPERATORS or hasattr(torch.ops.aten, word)


def test_nothing_else_keeps_names_of_operators() -> None:
    found: dict[str, list[int]] = {}
    for file in FILES:
        name = str(file.relative_to(ROOT))
        for line, words in groups(ast.parse(file.read_text())):
            operators = [w for w in words if w.isidentifier() and known(w)]
            if len(operators) > MOST and len(operators) >= 0.8 * len(words):
                found.setdefault(name, []).append(line)
    assert found.keys() - {"eval/traits/aten.py"} == ALLOWED.keys(), found
    assert "eval/traits/aten.py" in found  # the search itself works


def test_nothing_else_cuts_a_base_name_out() -> None:
    """`op.split(".")` and its like; of the whole overload only `ingest/graphs/graph.py` makes three."""
    cutting = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
                of = ast.unparse(node.func.value)
                if of == "op" or of.endswith(".op"):
                    cutting.append(str(file.relative_to(ROOT)))
    assert sorted(cutting) == ["eval/traits/aten.py", "ingest/graphs/graph.py"]


def test_the_search_finds_sets_in_every_form() -> None:
    source = 'A = {"add", "mul"}\nB = ("sin", "cos")\nC = "exp log".split()\nD = frozenset(["neg"])'
    words = list(itertools.chain.from_iterable(w for _, w in groups(ast.parse(source))))
    assert sorted(words) == sorted("add mul sin cos exp log neg".split())


def test_the_first_of_equals_is_owed_of_inputs_as_they_are() -> None:
    def fp(*nodes: Node) -> FunctionalProblem:
        return replace(problem("tanh"), nodes=nodes)

    x = problem("tanh").tensors[0].name
    argmax = Node("a", "aten.argmax.default", (Ref(x), 1), (), ())
    turned = Node("t", "aten.transpose.int", (Ref(x), 0, 1), (), ())
    added = Node("s", "aten.add.Tensor", (Ref(x), 1.0), (), ())
    assert first_of_equals(fp(argmax))
    assert first_of_equals(fp(turned, replace(argmax, args=(Ref("t"), 1))))
    assert not first_of_equals(fp(added, replace(argmax, args=(Ref("s"), 1))))  # rounding may make equals
    assert not first_of_equals(fp(argmax, Node("k", "aten.topk.default", (Ref(x), 5), (), ())))
    assert not first_of_equals(fp(added))
