"""Arrival times of traces: columns, units, dates, and what is refused."""

import pytest

from capplan.cards.trace import load_arrivals
from capplan.errors import InputError


def _written(tmp_path, text, name="trace.csv"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("arrival_s,n\n1.5,1\n2,1\n4.25,1\n", "t.csv"),
        ("Timestamp\n1500\n2000\n4250\n", "t.csv"),
        ('{"timestamp": 1500}\n{"timestamp": 2000}\n{"timestamp": 4250}\n', "t.jsonl"),
        ("TIMESTAMP,x\n2023-11-16 18:00:01.5000000,0\n2023-11-16 18:00:02,0\n2023-11-16 18:00:04.250,0\n", "t.csv"),
    ],
)
def test_seconds_milliseconds_and_dates(tmp_path, text, name):
    times = load_arrivals(_written(tmp_path, text, name))
    assert list(times - times[0]) == pytest.approx([0.0, 0.5, 2.75])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input_tokens,output_tokens\n1,2\n", "no column of arrival times"),
        ("arrival_s\n1\nsoon\n", "line 3, arrival_s"),
        ("arrival_s\n1\n-2\n", "'-2' is no time"),
        ("arrival_s\n1\nnan\n", "is no time"),
        ("arrival_s\n3\n3\n", "two different"),
        ("arrival_s,timestamp\n1,2\n", "keep one"),
        ("", "holds no request"),
    ],
)
def test_what_is_no_time_is_refused(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        load_arrivals(_written(tmp_path, text))
