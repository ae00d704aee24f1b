"""Write the published JSON Schemas of scenarios and cards beside this file; ``--check`` fails where one is stale."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from capplan.cards.engine_card import engine_card_schema
from capplan.cards.hardware_card import hardware_card_schema
from capplan.cards.model_card import model_card_schema
from capplan.cards.workload_card import workload_card_schema
from capplan.planning.scenario import scenario_schema

SCHEMAS = {
    "scenario": scenario_schema,
    "model-card": model_card_schema,
    "hardware-card": hardware_card_schema,
    "workload-card": workload_card_schema,
    "engine-card": engine_card_schema,
}


def main(check: bool) -> int:
    """Write or compare every schema; the exit code."""
    stale = []
    for name, schema in SCHEMAS.items():
        path = Path(__file__).parent / f"{name}.schema.json"
        text = json.dumps(schema(), indent=1, sort_keys=True) + "\n"
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(path.name)
        elif not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"stale: {', '.join(stale)}; run python docs/schemas/write.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
