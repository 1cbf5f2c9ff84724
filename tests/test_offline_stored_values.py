"""What is stored between nests, and what is computed where it is read: by the text, which is right, emulated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.emulated_texts import heads, right_text
from support.generated_kernels import Case

from rag_kernels.offline.lowering import factor_lines


def test_of_a_computed_tensor_only_what_is_gathered_is_computed(tmp_path: Path) -> None:
    body = "return torch.log_softmax(30 * torch.tanh(x / 30), -1).gather(1, y[:, None]).squeeze(1)"
    text = right_text(Case(body, "torch.randn(9, 40)", "torch.randint(0, 40, (9,))"), tmp_path)
    assert "_data = scratch<" not in text and len(heads(text)) == 1


def test_most_of_a_computed_tensor_is_stored_and_read(tmp_path: Path) -> None:
    text = right_text(
        Case("return torch.tanh(x).gather(1, y)", "torch.randn(9, 8)", "torch.randint(0, 8, (9, 7))"), tmp_path
    )
    assert "_data = scratch<" in text


def test_a_vector_that_is_read_as_a_row_and_as_a_column_is_stored_once(tmp_path: Path) -> None:
    body = "g = torch.sigmoid(x @ y); return g.t() @ x, g @ y.t()"
    text = right_text(Case(body, "torch.randn(300, 40)", "torch.randn(40, 1)"), tmp_path)
    stored = next(head for head in heads(text) if "rows of" in head).partition(":")[0]
    assert "," not in stored


def test_what_is_rounded_to_sixteen_bits_and_looked_up_is_stored_so(tmp_path: Path) -> None:
    body = "w = y[x.long()].view(40, 64) * 0.5; return F.linear(self.c, w.to(self.c.dtype))"
    init = "self.c = nn.Parameter(torch.randn(24, 64).half())"
    text = right_text(
        Case(body, "torch.randint(0, 16, (2560,), dtype=torch.uint8)", "torch.randn(16)", init=init), tmp_path
    )
    assert "__half* __restrict__ part0" in text


def test_a_layer_of_sixteen_bits_is_stored_so_with_its_bias(tmp_path: Path) -> None:
    init = "self.l = nn.Linear(64, 72).bfloat16()"
    given = "torch.randn(40, 64).bfloat16()", "torch.zeros(1).bfloat16()"
    text = right_text(Case("return torch.softmax(self.l(x), -1) + y", *given, init=init), tmp_path)
    assert "__nv_bfloat16* __restrict__ part0" in text and "float* __restrict__ part0" not in text


def test_what_replaces_elements_of_sixteen_bits_is_kept_so(tmp_path: Path) -> None:
    """Rows of a cache: a copy and what is written over it, no tensor of floats between; sums are of floats."""
    body = "i = y.long(); a, b = x.index_copy(0, i, x[:3] * 2), x.index_put((i,), x[2:5]); "
    body += "c = x.scatter(0, i[:, None].expand(3, 40), x[1:4]); return a, b, c.exp(), x.index_add(0, i, x[:3])"
    text = right_text(Case(body, "torch.randn(9, 40).bfloat16()", "torch.tensor([4., 0., 7.])"), tmp_path)
    kept = set(re.findall(r"(\w+)\* __restrict__ (scattered\d)", text))
    assert sorted(kind for kind, _ in kept) == ["__nv_bfloat16"] * 3 + ["float"]


def test_a_factor_that_lies_scattered_is_laid_in_lines_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factor_lines, "LARGE", 0)
    body = "return F.linear(x.view(8, 4, 8, 2, 8, 2).permute(0, 2, 4, 3, 5, 1).reshape(512, 16), y)"
    scattered = right_text(Case(body, "torch.randn(8, 4, 16, 16).half()", "torch.randn(64, 16).half()"), tmp_path)
    lines = right_text(
        Case("return F.linear(x.t(), y)", "torch.randn(16, 512).half()", "torch.randn(64, 16).half()"), tmp_path
    )
    assert len(heads(scattered)) == 2 and len(heads(lines)) == 1


def test_a_scattered_factor_and_its_transpose_are_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As heads behind each other, in a layer's gradients: it lies as it is copied fast, and products take either."""
    monkeypatch.setattr(factor_lines, "LARGE", 0)
    body = "m = x.transpose(1, 2).reshape(144, 128); return m.t() @ y, m @ y.t() @ y"
    text = right_text(Case(body, "torch.randn(2, 8, 72, 16)", "torch.randn(144, 128)"), tmp_path)
    copies = [head for head in heads(text) if "elements" in head]
    assert len(copies) == 1 and "," not in copies[0].partition(":")[0]


def test_a_value_of_rows_lies_as_its_rows_where_others_read_it_too(tmp_path: Path) -> None:
    """A norm's gradient, which two products take, one of them transposed, and a sum."""
    body = "g = (x.float() - x.float().square().mean(-1, keepdim=True)).to(x.dtype); m = g.view(144, 96); "
    body += "a = m.t() @ y; b = m @ y.t(); return a, b, g + (b @ y).view(2, 72, 96)"
    given = "torch.randn(2, 72, 96).bfloat16()", "torch.randn(144, 96).bfloat16()"
    text = right_text(Case(body, *given), tmp_path)
    assert not any("columns of" in head for head in heads(text))


def test_of_a_concatenation_elements_are_read_where_they_come_from(tmp_path: Path) -> None:
    body = "d = 1 + torch.cat([x[:1], x[1:] + x[:-1], y[:1]])[1:-1]; "
    body += "return torch.stack([d[i] * (i + 1) for i in range(4)])"
    text = right_text(Case(body, "torch.randn(6, 30)", "torch.randn(2, 30)"), tmp_path)
    assert "cat" not in text and len(heads(text)) == 1


def test_a_sum_before_a_sort_is_that_behind_it(tmp_path: Path) -> None:
    body = "r = torch.sigmoid(x[:, None] - x[:, :, None]).sum(-1); s = torch.log2(1 + r).sum(-1); "
    body += "return s + x.sort(-1).values[:, 0], r"
    text = right_text(Case(body, "torch.randn(9, 33)", "torch.randn(1)"), tmp_path)
    assert text.count("1.0f / (1.0f + rk_exp(") == 1


def test_the_place_of_a_largest_weight_may_be_what_a_scatter_reads(tmp_path: Path) -> None:
    body = "p, i = torch.softmax(x, -1).max(-1); return torch.zeros(40, dtype=x.dtype).index_add(0, i, p)"
    right_text(Case(body, "torch.randn(50, 40)", "torch.randn(1)"), tmp_path)


def test_a_roll_of_windows_is_read_where_they_lie(tmp_path: Path) -> None:
    body = "w = x.view(2, 3, 2, 4, 5, 8).permute(0, 1, 3, 2, 4, 5).reshape(2, 12, 10, 8); "
    body += "return y + torch.roll(w, (3, -2), (1, 2))"
    text = right_text(Case(body, "torch.randn(12, 20, 8)", "torch.randn(2, 12, 10, 8)"), tmp_path)
    assert len(heads(text)) == 1


def test_what_a_scatter_takes_is_computed_once_where_another_nest_stores_it(tmp_path: Path) -> None:
    body = "e = torch.tanh(x * self.w[y]); return x.new_zeros(9, 8).index_add(0, y, e), e"
    init = "self.w = nn.Parameter(torch.randn(9, 8))"
    text = right_text(Case(body, "torch.randn(40, 8)", "torch.randint(0, 9, (40,))", init=init), tmp_path)
    assert text.count("w_p[") == 1


def test_loops_follow_the_store_that_lies_as_most_of_what_is_read(tmp_path: Path) -> None:
    body = "n = F.layer_norm(x + y, (64,)); return n.transpose(1, 2).contiguous(), n"
    text = right_text(Case(body, "torch.randn(6, 32, 64)", "torch.randn(6, 32, 64)"), tmp_path)
    assert ["rows of" in head for head in heads(text)] == [True]


def test_sums_down_columns_of_which_half_lie_across_are_in_parts(tmp_path: Path) -> None:
    body = "return (x + y.mT).sum((0, 1)), (x * y.mT).sum((0, 1))"
    text = right_text(Case(body, "torch.randn(512, 32, 64)", "torch.randn(512, 64, 32)"), tmp_path)
    assert len(heads(text)) == 2


def test_a_value_in_two_shapes_is_stored_once(tmp_path: Path) -> None:
    body = (
        "f = (x[y].view(30, 24) @ self.k).tanh(); q = torch.zeros_like(x).index_add(0, y.view(-1), f.view(-1, 3));"
        "return q, (x[y].view(30, 24) * f).sum(-1)"
    )
    init = "self.k = nn.Parameter(torch.randn(24, 24))"
    text = right_text(Case(body, "torch.randn(50, 3)", "torch.randint(0, 50, (30, 8))", init=init), tmp_path)
    assert sum("products of" in head for head in heads(text)) == 1 and text.count("_data = scratch<") == 2
