"""A divergence with an option that lives outside of the package: Amari's alpha-divergence."""

from dataclasses import dataclass

from paint import Divergence
from paint.core.settings import setting, within


@dataclass(frozen=True)
class AlphaOptions:
    alpha: float = setting(0.5, within("(0, 1)"), "default: 0.5")
    """Order, in (0, 1): towards 0 it is reverse KL, towards 1 forward KL."""


def alpha_divergence(options: AlphaOptions) -> Divergence:
    a = options.alpha
    return Divergence(
        name="alpha",
        term=lambda p, log_p, q, log_q: (p**a * q ** (1 - a) - a * p - (1 - a) * q) / (a * (a - 1)),
        slope=lambda p, log_p, q, log_q: (q - p**a * q ** (1 - a)) / a,
    )
