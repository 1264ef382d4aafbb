"""``python -m rallypoint`` is the command ``rallypoint``."""

import sys

from rallypoint._command import main

sys.exit(main())
