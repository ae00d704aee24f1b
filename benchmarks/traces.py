"""Rows a second and memory of reading a trace: ``python benchmarks/traces.py [--quick]``.

Writes traces of ten million rows (half a million with ``--quick``) of lognormal lengths and reads each in a fresh
interpreter. Memory is what the reading adds to the imports at its highest (on Linux). Budgets: 300,000 rows/s, 200 MB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROWS, QUICK_ROWS, AT_ONCE = 10_000_000, 500_000, 100_000
LAWS = ((6.5, 1.3), (6.3, 1.1))
"""Mean and standard deviation of the logarithm of prompt and output tokens."""
READER = """
import re, sys, time
from pathlib import Path
from capplan.cards.trace import read_trace
def highest(): return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = highest()
start = time.perf_counter()
trace = read_trace(Path(sys.argv[1]))
seconds = time.perf_counter() - start
trace.workload()
print(trace.requests / seconds, (highest() - before) / 1024)
"""


def _dates(times: np.ndarray) -> list[str]:
    stamps = np.datetime64("2024-05-10T00:00:00") + (times * 1e6).astype("timedelta64[us]")
    return [stamp.replace("T", " ") + "+00:00" for stamp in stamps.astype(str).tolist()]


def _csv(times: np.ndarray, prompts: np.ndarray, outputs: np.ndarray) -> str:
    rows = zip(_dates(times), prompts.tolist(), outputs.tolist(), strict=True)
    return "".join(f"{stamp},{prompt},{output}\n" for stamp, prompt, output in rows)


def _jsonl(times: np.ndarray, prompts: np.ndarray, outputs: np.ndarray) -> str:
    rows = zip((times * 1e3).astype(int).tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return "".join(f'{{"arrival_ms": {t}, "input_length": {p}, "output_length": {o}}}\n' for t, p, o in rows)


Writer = Callable[[np.ndarray, np.ndarray, np.ndarray], str]
FORMATS: dict[str, tuple[str, Writer]] = {
    "trace.csv": ("TIMESTAMP,ContextTokens,GeneratedTokens\n", _csv),
    "trace.jsonl": ("", _jsonl),
}


def write_trace(path: Path, header: str, text: Writer, rows: int) -> None:
    """A trace of Poisson arrivals with lognormal lengths."""
    random, now = np.random.default_rng(0), 0.0
    with path.open("w", encoding="utf-8") as stream:
        stream.write(header)
        for _ in range(rows // AT_ONCE):
            times = now + np.cumsum(random.exponential(0.02, AT_ONCE))
            prompts, outputs = (np.rint(random.lognormal(mu, sigma, AT_ONCE)).astype(int) + 1 for mu, sigma in LAWS)
            stream.write(text(times, prompts, outputs))
            now = float(times[-1])


def main(quick: bool) -> None:
    """Print a row a format."""
    rows = QUICK_ROWS if quick else ROWS
    print(f"{'trace':12} {'rows':>12} {'rows/s':>12} {'budget':>9} {'MB':>6} {'budget':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (header, text) in FORMATS.items():
            path = Path(folder) / name
            write_trace(path, header, text, rows)
            done = subprocess.run([sys.executable, "-c", READER, str(path)], check=True, capture_output=True, text=True)
            speed, memory = (float(word) for word in done.stdout.split())
            print(f"{name:12} {rows:12,} {speed:12,.0f} {300_000:9,} {memory:6.0f} {200:7}")
            path.unlink()


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
