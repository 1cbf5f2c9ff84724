"""Model predictive path integral control of a car: 24 steps of many noisy plans, costs with obstacles, weights by
softmax, the new plan, fp32."""

import torch
import torch.nn as nn

PLANS = 16384
STEPS = 24
OBSTACLES = 6


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.dt, self.wheelbase = 0.1, 2.5

    def forward(self, plan, noise, state, goal, obstacles):
        actions = (plan[None] + noise).clamp(-1, 1)
        x, y, heading, speed = (state[i].expand(noise.shape[0]) for i in range(4))
        cost = torch.zeros_like(x)
        for t in range(actions.shape[1]):
            gas, wheel = actions[:, t, 0], 0.5 * actions[:, t, 1]
            x = x + self.dt * speed * heading.cos()
            y = y + self.dt * speed * heading.sin()
            heading = heading + self.dt * speed * wheel.tan() / self.wheelbase
            speed = (speed + self.dt * 3.0 * gas).clamp(0, 10)
            away = ((x[:, None] - obstacles[:, 0]) ** 2 + (y[:, None] - obstacles[:, 1]) ** 2).sqrt()
            cost = cost + 0.1 * ((x - goal[0]) ** 2 + (y - goal[1]) ** 2).sqrt()
            cost = cost + 10 * torch.relu(obstacles[:, 2] + 0.5 - away).sum(-1) + 0.01 * wheel.square()
        weights = torch.softmax(-cost / 0.5, dim=0)
        return (weights[:, None, None] * actions).sum(0), cost


def get_inputs():
    return [
        0.1 * torch.randn(STEPS, 2),
        0.5 * torch.randn(PLANS, STEPS, 2),
        torch.tensor([0.0, 0.0, 0.3, 4.0]),
        torch.tensor([9.0, 4.0]),
        torch.rand(OBSTACLES, 3) * torch.tensor([9.0, 6.0, 1.0]),
    ]


def get_init_inputs():
    return []
