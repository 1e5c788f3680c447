"""The ``paint`` command line: one module per verb, and the entry point ``main``."""

from paint.cli.main import main as main
