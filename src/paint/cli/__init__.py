"""The ``paint`` command line: one module per verb, and the entry point ``main``."""

import sys

try:
    from paint.cli.main import main as main
except KeyboardInterrupt:  # in the half second that the imports take
    sys.exit(130)
