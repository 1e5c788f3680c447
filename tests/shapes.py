"""The checker that runs behind every annotation of paint while tests run."""

from beartype import BeartypeConf, beartype

check = beartype(
    conf=BeartypeConf(is_pep484_tower=True)
)  # an int is a float, as type checkers have it
