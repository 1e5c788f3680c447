"""How a plan writes bytes and seconds."""


def gb(value: float) -> str:
    """Bytes in GB, with two or three digits."""
    giga = value / 1e9
    for least, digits in ((99.95, 0), (9.95, 1), (0.0995, 2), (0.00995, 3)):
        if abs(giga) >= least:
            return f"{giga:,.{digits}f}"
    return f"{giga:.4f}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, in two or three digits."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
