"""Entry point of ``python -m paint.cli``."""

import sys

from paint.cli.main import main

sys.exit(main())
