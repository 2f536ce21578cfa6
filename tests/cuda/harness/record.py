"""Write bits.json from this machine's CPU: only after a change that is meant to change bits."""

import json

import prismm
from tests.cuda.harness.cases import CASES, KEYWORDS, RECORD, digest, key, operands


def main() -> None:
    found = {}
    for dtype, name, target in CASES:
        a, b = operands(dtype, name)
        found[key(dtype, name, target)] = digest(prismm.matmul(a, b, **KEYWORDS[dtype][target]))
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
