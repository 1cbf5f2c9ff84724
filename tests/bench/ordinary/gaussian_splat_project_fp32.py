"""The projection of 3-D Gaussians to the screen: covariances of quaternions and scales, the camera's Jacobian,
conics, radii and colours by harmonics."""

import torch
import torch.nn as nn
import torch.nn.functional as F

SPLATS = 1000000
WIDTH = 1920
HEIGHT = 1080
FOCAL = 1200.0


class Model(nn.Module):
    def forward(self, means, quats, scales, opacity, sh, view):
        q = F.normalize(quats, dim=-1)
        w, x, y, z = q.unbind(-1)
        rotation = torch.stack(
            [
                1 - 2 * (y * y + z * z),
                2 * (x * y - w * z),
                2 * (x * z + w * y),
                2 * (x * y + w * z),
                1 - 2 * (x * x + z * z),
                2 * (y * z - w * x),
                2 * (x * z - w * y),
                2 * (y * z + w * x),
                1 - 2 * (x * x + y * y),
            ],
            dim=-1,
        ).view(-1, 3, 3)
        m = rotation * scales.exp().unsqueeze(1)
        sigma = m @ m.transpose(1, 2)
        cam = means @ view[:3, :3].t() + view[:3, 3]
        depth = cam[:, 2].clamp(min=0.2)
        lim_x, lim_y = 1.3 * WIDTH / (2 * FOCAL), 1.3 * HEIGHT / (2 * FOCAL)
        tx = (cam[:, 0] / depth).clamp(-lim_x, lim_x) * depth
        ty = (cam[:, 1] / depth).clamp(-lim_y, lim_y) * depth
        zero = torch.zeros_like(depth)
        jac = torch.stack(
            [FOCAL / depth, zero, -FOCAL * tx / depth**2, zero, FOCAL / depth, -FOCAL * ty / depth**2], dim=-1
        ).view(-1, 2, 3)
        t = jac @ view[:3, :3]
        cov = t @ sigma @ t.transpose(1, 2)
        a, b, c = cov[:, 0, 0] + 0.3, cov[:, 0, 1], cov[:, 1, 1] + 0.3
        det = (a * c - b * b).clamp(min=1e-6)
        conic = torch.stack([c / det, -b / det, a / det], dim=-1)
        mid = 0.5 * (a + c)
        radius = torch.ceil(3 * (mid + (mid * mid - det).clamp(min=0.1).sqrt()).sqrt())
        centre = torch.stack([FOCAL * cam[:, 0] / depth + WIDTH / 2, FOCAL * cam[:, 1] / depth + HEIGHT / 2], dim=-1)
        direction = F.normalize(means + view[:3, :3].t() @ view[:3, 3], dim=-1)
        dx, dy, dz = direction.split(1, dim=-1)
        colour = 0.28209479 * sh[:, 0] - 0.48860251 * dy * sh[:, 1]
        colour = colour + 0.48860251 * dz * sh[:, 2] - 0.48860251 * dx * sh[:, 3]
        seen = (cam[:, 2] > 0.2) & (radius > 0)
        return centre, conic, radius * seen, (colour + 0.5).clamp(min=0), torch.sigmoid(opacity) * seen


def get_inputs():
    view = torch.eye(4)
    view[2, 3] = 6.0
    return [
        torch.randn(SPLATS, 3),
        torch.randn(SPLATS, 4),
        torch.randn(SPLATS, 3) * 0.5 - 4.0,
        torch.randn(SPLATS),
        torch.randn(SPLATS, 4, 3) * 0.3,
        view,
    ]


def get_init_inputs():
    return []
