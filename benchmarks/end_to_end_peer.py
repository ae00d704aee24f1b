"""What aiconfigurator 0.12.0 itself predicts for the measured end-to-end rows."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from end_to_end_rows import Row

FILE = Path(__file__).resolve().parent.parent / "tests" / "truth" / "end_to_end_peer.csv"


def peer_ratios(rows: Sequence[Row], formats: str) -> tuple[np.ndarray, np.ndarray]:
    """Its TPOT and TTFT over measured, with ``labelled`` or ``served`` formats; NaN where it predicts nothing."""
    with FILE.open(newline="", encoding="utf-8") as text:
        lines = {line["id"]: line for line in csv.DictReader(line for line in text if not line.startswith("#"))}

    def predicted(row: Row, what: str) -> float:
        return float(lines.get(row.id, {}).get(f"{formats}_{what}_ms") or "nan")

    tpot = np.array([predicted(row, "tpot") / row.tpot_ms for row in rows])
    return tpot, np.array([predicted(row, "ttft") / row.ttft_ms for row in rows])
