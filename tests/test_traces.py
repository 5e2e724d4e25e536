"""Readers of recorded traffic, on the published column names; a bad line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.traces import TraceRow, read_trace, scaled

SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"


def read(tmp_path: Path, name: str, text: str) -> list[TraceRow]:
    path = tmp_path / name
    path.write_text(text)
    return read_trace(path)


def test_normalised_csv(tmp_path: Path) -> None:
    rows = read(tmp_path, "a.csv", "arrival_s,input_tokens,output_tokens\n5.0,374,44\n9.315,396,109\n")
    assert rows == [TraceRow(0.0, 374, 44), TraceRow(pytest.approx(4.315), 396, 109)]


def test_original_azure_csv(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    )
    rows = read(tmp_path, "a.csv", text)
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(4808, 10), (3180, 8)]
    assert [row.arrival for row in rows] == [0.0, pytest.approx(0.052, abs=1e-5)]


def test_mooncake_jsonl_in_both_spellings(tmp_path: Path) -> None:
    ours = '{"arrival_s":0.0,"input_tokens":700,"output_tokens":5,"hash_ids":[0,7]}\n'
    original = '{"timestamp": 3000, "input_length": 600, "output_length": 52, "hash_ids": [0, 8]}\n'
    assert read(tmp_path, "a.jsonl", ours) == [TraceRow(0.0, 700, 5, (0, 7))]
    assert read(tmp_path, "b.jsonl", original) == [TraceRow(0.0, 600, 52, (0, 8))]


def test_clients_and_images(tmp_path: Path) -> None:
    text = "arrival_s,client,text_tokens,image_tokens,output_tokens\n0.0,c007,474,432;252,273\n1.0,c001,79,,92\n"
    rows = read(tmp_path, "a.csv", text)
    assert [(row.client, row.input_tokens) for row in rows] == [("c007", 474 + 432 + 252), ("c001", 79)]


def test_lengths_without_arrivals(tmp_path: Path) -> None:
    rows = read(tmp_path, "a.csv", "input_tokens,output_tokens\n3772,54\n2015,156\n")
    assert [row.arrival for row in rows] == [None, None]


def test_rows_are_sorted_by_arrival(tmp_path: Path) -> None:
    rows = read(tmp_path, "a.csv", "arrival_s,input_tokens,output_tokens\n9,1,1\n7,2,2\n8,3,3\n")
    assert [(row.arrival, row.input_tokens) for row in rows] == [(0.0, 2), (1.0, 3), (2.0, 1)]


def test_scaling_keeps_prefixes_in_proportion() -> None:
    assert scaled(TraceRow(1.0, 6758, 500, (1, 2)), 1 / 16) == TraceRow(1.0, 422, 31, (1, 2), block_tokens=32)
    assert scaled(TraceRow(1.0, 3, 3), 0.01) == TraceRow(1.0, 1, 1, block_tokens=5)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "arrival_s,input_tokens\n0,5\n", "line 2: there is no column output_tokens"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n0,5,5\n1,many,5\n", "line 3: column input_tokens is 'many'"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n0,-5,5\n", "line 2: column input_tokens is '-5'"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n0,5\n", "line 2: column output_tokens is None"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\nnan,5,5\n", "line 2: column arrival_s is 'nan'"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,5,5\n", "line 2: column TIMESTAMP is 'noon'"),
        (
            "a.csv",
            "arrival_s,text_tokens,image_tokens,output_tokens\n0,5,1;x,5\n",
            "line 2: column image_tokens is 'x'",
        ),
        ("a.jsonl", '{"arrival_s":0,"input_tokens":1,"output_tokens":1,"hash_ids":["a"]}\n', "column hash_ids is 'a'"),
        (
            "a.csv",
            "arrival_s,input_tokens,output_tokens\n0,9999999999999,5\n",
            "column input_tokens is '9999999999999'",
        ),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n0,5,5\n1e308,5,5\n", "from the first arrival to the last"),
        ("a.jsonl", '{"arrival_s":0,"input_tokens":10.5,"output_tokens":1}\n', "column input_tokens is 10.5"),
        ("a.jsonl", '{"arrival_s":0,"input_tokens":true,"output_tokens":1}\n', "column input_tokens is True"),
        ("a.jsonl", '{"arrival_s":true,"input_tokens":1,"output_tokens":1}\n', "column arrival_s is True"),
        ("a.csv", "", "no requests"),
        ("a.jsonl", '{"arrival_s":0,"input_tokens":1,"output_tokens":1}\n{"arr\n', "line 2: "),
    ],
)
def test_a_bad_file_says_where(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="--trace") as raised:
        read(tmp_path, name, text)
    assert said in raised.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.csv"):
        read_trace(tmp_path / "nowhere.csv")


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the optional folder with published traces is not there")
@pytest.mark.parametrize(
    ("name", "rows", "span", "median_input", "longest_output"),
    [
        ("azure2023_code.csv", 8819, 3435.9, 1469, 1899),
        ("azure2023_conv.csv", 19_366, 3501.7, 1020, 1000),
        ("mooncake_conversation_first3600.jsonl", 3600, 1182.0, 7911, 2000),
        ("mooncake_synthetic_first3300.jsonl", 3300, 857.0, 9428, 893),
    ],
)
def test_published_traces(name: str, rows: int, span: float, median_input: int, longest_output: int) -> None:
    read_rows = read_trace(SAMPLES / name)
    inputs = sorted(row.input_tokens for row in read_rows)
    assert len(read_rows) == rows
    assert read_rows[-1].arrival == pytest.approx(span, abs=0.06)
    assert inputs[len(inputs) // 2] == pytest.approx(median_input, abs=2)
    assert max(row.output_tokens for row in read_rows) == longest_output
