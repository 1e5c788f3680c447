"""A divergence that lives outside of the package."""

from paint import Divergence

chi_squared = Divergence(
    name="chi_squared",
    term=lambda p, log_p, q, log_q: (p - q) ** 2 / q,
    slope=lambda p, log_p, q, log_q: q - p**2 / q,
)
