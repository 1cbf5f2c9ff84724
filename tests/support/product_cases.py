"""Cases of products and convolutions."""

from __future__ import annotations

from support.generated_kernels import Case

# Odd sizes and ones that allow sixteen-byte loads; strides, paddings, dilations and groups that are not alike.
CASES = {
    "matrices": Case(
        "return x @ y, x.t() @ self.w, torch.relu(self.l(x)) * 0.5 + x, x @ x, y.t() @ x.t()",
        "torch.randn(36, 36)",
        "torch.randn(36, 53)",
        init="self.l = nn.Linear(36, 36); self.w = nn.Parameter(torch.randn(36, 132))",
    ),
    "batches": Case(
        "return torch.bmm(x, y), torch.baddbmm(x[:, :, :19], x, y, beta=0.5), x @ y[0], "
        "torch.einsum('bmk,bnk->mbn', x, x), torch.einsum('bmk,bnk,bm,bkp->bnp', x, x, x[:, :, 0], y), "
        "torch.einsum('ai,bj,c->ij', x[0], y[1], x[2, 3])",
        "torch.randn(3, 17, 40)",
        "torch.randn(3, 40, 19)",
    ),
    "deep": Case(
        "a, b = x.view(12, -1)[:, :1000], y.view(12, -1)[:, :1000];"
        "return x.t() @ y * 2, x[:400].t() @ y[:400] + 1, (a @ b.t()).relu()",
        "torch.randn(2304, 12)",
        "torch.randn(2304, 12)",
    ),
    "parts": Case("return x.t() @ y * 2", "torch.randn(560, 36)", "torch.randn(560, 34)"),
    "filters": Case(
        "return F.relu(self.a(x)) + y, self.b(x), self.c(x), self.d(x)",
        "torch.randn(2, 12, 9, 7)",
        "torch.randn(1)",
        init="self.a = nn.Conv2d(12, 70, 3, padding=1); self.b = nn.Conv2d(12, 80, (3, 2), (2, 1), (1, 2), 2, 2); "
        "self.c = nn.Conv2d(12, 36, 7, 3, 6); self.d = nn.ConvTranspose2d(12, 35, 3, stride=2, padding=1)",
    ),
    "rows": Case(
        "return F.scaled_dot_product_attention(x, y, y), (x @ y.mT).softmax(-1), x @ y[0, 0], torch.triu(x) @ y[0, 0]",
        "torch.randn(3, 20, 24)",
        "torch.randn(3, 28, 24)",
    ),
    "convolutions": Case(
        "return F.relu(self.a(x)) + y, self.b(x), self.c(x), self.d(x), self.e(x[0]), self.f(x[:, :, None])",
        "torch.randn(2, 6, 19, 23)",
        "torch.randn(1)",
        init="self.a = nn.Conv2d(6, 12, 3, padding=1); self.c = nn.Conv2d(6, 9, 1); "
        "self.b = nn.Conv2d(6, 10, (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=2); "
        "self.d = nn.Conv2d(6, 6, (3, 5), groups=6, padding=1, bias=False); "
        "self.e = nn.Conv1d(19, 8, 3, stride=2, dilation=4); self.f = nn.Conv3d(6, 8, (1, 3, 2), padding=(0, 1, 2))",
    ),
    "transposed": Case(
        "return F.gelu(self.a(x)) * y, self.b(x), self.c(x), self.d(x[0]), self.e(x[:, :, None])",
        "torch.randn(2, 6, 7, 9)",
        "torch.randn(1)",
        init="self.a = nn.ConvTranspose2d(6, 12, 3, padding=1); "
        "self.b = nn.ConvTranspose2d(6, 10, (3, 5), (2, 3), (1, 2), (1, 0), groups=2, dilation=(2, 1)); "
        "self.c = nn.ConvTranspose2d(6, 9, 3, stride=5, padding=1, dilation=2); "
        "self.d = nn.ConvTranspose1d(7, 8, 5, stride=2); self.e = nn.ConvTranspose3d(6, 8, 3, stride=2, padding=1)",
    ),
}
