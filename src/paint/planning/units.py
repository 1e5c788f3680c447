"""How a plan writes bytes and seconds."""


def gb(value: float) -> str:
    """Bytes in GB, as three digits."""
    gb = value / 1e9
    return f"{gb:,.0f}" if abs(gb) >= 99.95 else f"{gb:.1f}" if abs(gb) >= 0.95 else f"{gb:.2f}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, in two or three digits."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
