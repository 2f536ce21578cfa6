"""``python -m prismm.cli`` runs the ``prismm`` command."""

from prismm.cli import main

main()
