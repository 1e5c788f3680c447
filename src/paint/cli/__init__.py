"""The ``paint`` command: one module a verb, and ``main``, which parses, runs and reports errors."""

from paint.cli.main import main as main
