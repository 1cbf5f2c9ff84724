"""Cases of deep modules: residual sums, bottlenecks, and a row of many sums."""

from __future__ import annotations

from support.generated_kernels import Case

CONVOLUTIONS = "self.c = nn.ModuleList(nn.Conv2d(12, 12, 3, padding=1, groups=3) for _ in range(4)); "
RESIDUAL = Case(
    "x = self.c[0](x); x = x + F.relu(self.b[1](self.c[1](x))); x = x + F.relu(self.b[2](self.c[2](x))); "
    "return x + F.relu(self.b[3](self.c[3](x))) + y",
    "torch.randn(2, 12, 16, 16)",
    "torch.randn(1)",
    init=CONVOLUTIONS + "self.b = nn.ModuleList(nn.BatchNorm2d(12) for _ in range(4))",
)
# As in a DenseNet: layers that differ in how many channels come in, and in where in the concatenation theirs begin.
BOTTLENECKS = Case(
    "a = self.c[0](F.relu(self.b[0](self.r[0](F.relu(self.a[0](x)))))); z = torch.cat([x, a], 1); "
    "b = self.c[1](F.relu(self.b[1](self.r[1](F.relu(self.a[1](z)))))); w = torch.cat([x, a, b], 1); "
    "d = self.c[2](F.relu(self.b[2](self.r[2](F.relu(self.a[2](w)))))); return torch.cat([x, a, b, d], 1) + y",
    "torch.randn(2, 24, 9, 7)",
    "torch.randn(1)",
    init="self.a = nn.ModuleList(nn.BatchNorm2d(24 + 8 * i) for i in range(3)); "
    "self.r = nn.ModuleList(nn.Conv2d(24 + 8 * i, 16, 1, bias=False) for i in range(3)); "
    "self.b = nn.ModuleList(nn.BatchNorm2d(16) for i in range(3)); "
    "self.c = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=1, bias=False) for i in range(3))",
)
MANY_SUMS = Case(
    "return sum(F.batch_norm(v, None, None, training=True) for v in x.chunk(9)) + y",
    "torch.randn(18, 3, 41, 401)",
    "torch.randn(1)",
)
