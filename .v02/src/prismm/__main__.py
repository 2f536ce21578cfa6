"""``python -m prismm``: the command, where its script is not on the path."""

from prismm.cli import main

if __name__ == "__main__":
    main()
