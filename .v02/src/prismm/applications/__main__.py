"""``python -m prismm.applications`` runs all of them: see `prismm.applications.run`."""

import sys

from prismm.applications.run import main

sys.exit(main())
