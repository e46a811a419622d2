"""One time stepper for u' = L u + N(u), L diagonal and stiff: the exponential method of Cox and Matthews.

The linear part is solved exactly and N is integrated by a rule of order 4. With z = h L and N_u = N(u),

    a  = e^(z/2) u + (h/2) phi1(z/2) N_u
    b  = e^(z/2) u + (h/2) phi1(z/2) N_a
    c  = e^(z/2) a + (h/2) phi1(z/2) (2 N_b - N_u)
    u' = e^z u + h [(phi1 - 3 phi2 + 4 phi3) N_u + 2 (phi2 - 2 phi3) (N_a + N_b) + (4 phi3 - phi2) N_c](z)

where phi0 = e^z and phi_k(z) = (phi_{k-1}(z) - 1/(k-1)!) / z. That recursion loses all digits near z = 0, so
|z| < 1 uses the Taylor series phi_k(z) = sum_j z^j / (j+k)!; both are accurate to about 1e-15. A constant N,
such as a boundary flux or a fixed force, is integrated exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, factorial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from ..grid import Axis

ORDER = 4
# 1 / 18! = 2e-16.
_SERIES = 18


def phi(z: Float[Tensor, "*any"]) -> tuple[Tensor, Tensor, Tensor]:
    """`phi1(z), phi2(z), phi3(z)` for real z."""
    small = z.abs() < 1
    small_z, large_z = torch.where(small, z, 0.0), torch.where(small, 1.0, z)
    out = []
    direct = large_z.exp()
    for k in (1, 2, 3):
        direct = (direct - 1 / factorial(k - 1)) / large_z
        series = torch.zeros_like(z)
        for j in reversed(range(_SERIES)):
            series = series * small_z + 1 / factorial(j + k)
        out.append(torch.where(small, series, direct))
    return out[0], out[1], out[2]


@final
class ETDRK4:
    """The step of one length `h`: its coefficients are computed once. `L` broadcasts against the state."""

    def __init__(self, L: Tensor, N: Callable[[Tensor], Tensor], h: float) -> None:
        phi1, phi2, phi3 = phi(h * L)
        self.N = N
        self.E, self.E2 = (h * L).exp(), (h * L / 2).exp()
        self.Q = h / 2 * phi(h * L / 2)[0]
        self.f1 = h * (phi1 - 3 * phi2 + 4 * phi3)
        self.f2 = 2 * h * (phi2 - 2 * phi3)
        self.f3 = h * (4 * phi3 - phi2)

    def __call__(self, u: Tensor) -> Tensor:
        """Advance the state by one step."""
        Nu = self.N(u)
        Eu = self.E2 * u
        a = torch.addcmul(Eu, self.Q, Nu)
        Na = self.N(a)
        b = torch.addcmul(Eu, self.Q, Na)
        Nb = self.N(b)
        c = torch.addcmul(self.E2 * a, self.Q, 2 * Nb - Nu)
        out = torch.addcmul(self.E * u, self.f1, Nu)
        out = torch.addcmul(out, self.f2, Na + Nb)
        return torch.addcmul(out, self.f3, self.N(c))


def frames(
    u: Tensor, L: Tensor, N: Callable[[Tensor], Tensor], spacing: float, count: int, max_step: float
) -> Iterator[Tensor]:
    """Return the states at `count` times, `spacing` apart and the first one after one spacing.

    Args:
        u: State at the start.
        L: Diagonal of the linear part.
        N: Nonlinear part.
        spacing: Time between two states.
        count: Number of states.
        max_step: Each interval takes the fewest equal steps that are no longer than this.

    Yields:
        The states.
    """
    steps = ceil(spacing / max_step - 1e-9)
    step = ETDRK4(L, N, spacing / steps)
    for _ in range(count):
        for _ in range(steps):
            u = step(u)
        yield u


def trajectory(
    u0: Tensor, states: Iterator[Tensor], time: Axis, transform: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the fields at all times: `u0`, then what `transform` makes of each state; time is last."""
    out = u0.new_empty(time.n, *u0.shape)
    out[0] = u0
    for i, state in enumerate(states, 1):
        out[i] = transform(state)
    return out.movedim(0, -1)
