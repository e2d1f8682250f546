"""`python -m simulation`: see `cli`."""

import sys

from simulation.cli import main

sys.exit(main())
