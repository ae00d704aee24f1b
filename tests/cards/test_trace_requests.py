"""Requests of traces: columns, units, dates, and what is refused."""

import pytest

from capplan.cards.trace_requests import load_requests
from capplan.errors import InputError


def _written(tmp_path, text, name="trace.csv"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("arrival_s,isl,osl\n1.5,1,2\n2,1,2\n4.25,1,2\n", "t.csv"),
        ("arrival_ms,isl,osl\n1500,1,2\n2000,1,2\n4250,1,2\n", "t.csv"),
        (
            '{"timestamp": 1500, "input_length": 8, "output_length": 2, "hash_ids": [1]}\n'
            '{"timestamp": 2000, "input_length": 8, "output_length": 2, "hash_ids": [2]}\n'
            '{"timestamp": 4250, "input_length": 8, "output_length": 2, "hash_ids": [3]}\n',
            "t.jsonl",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:01.5000000,5,6\n2023-11-16 18:00:02,5,6\n"
            "2023-11-16 18:00:04.250,5,6\n",
            "t.csv",
        ),
    ],
)
def test_seconds_milliseconds_and_dates(tmp_path, text, name):
    times = load_requests(_written(tmp_path, text, name)).times
    assert list(times - times[0]) == pytest.approx([0.0, 0.5, 2.75])


def test_columns_of_other_names(tmp_path):
    file = _written(tmp_path, "sent,isl,osl\n1,1,2\n3,1,2\n")
    assert list(load_requests(file, {"timestamp": "sent:s"}).times) == [0.0, 2.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input_tokens,output_tokens\n1,2\n", "no column of arrival times; known: timestamp"),
        ("arrival_s,isl,osl\n1,1,1\nsoon,1,1\n", "line 3, arrival_s"),
        ("arrival_s,isl,osl\n1,1,1\n-2,1,1\n", "line 3, arrival_s"),
        ("arrival_s,isl,osl\n1,1,1\nnan,1,1\n", "is no time"),
        ("arrival_s,isl,osl\n3,1,1\n3,1,1\n", "two different"),
        ("", "holds no request"),
    ],
)
def test_what_is_no_time_is_refused(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        load_requests(_written(tmp_path, text))


def test_lengths_come_along_and_failed_requests_stay_out(tmp_path):
    found = load_requests(_written(tmp_path, "arrival_s,isl,osl\n1,10,2\n2,20,0\n3,30,4\n"))
    assert [list(column) for column in found[:3]] == [[0.0, 2.0], [10, 30], [2, 4]]
    assert found.reasoning is None
    text = "arrival_s,isl,osl,reasoning_tokens\n1,10,2,1\n2,20,0,0\n3,30,4,0\n"
    told = load_requests(_written(tmp_path, text, "told.csv"))
    assert told.reasoning is not None
    assert list(told.reasoning) == [1, 0]
