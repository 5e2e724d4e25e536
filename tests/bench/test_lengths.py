"""Distributions of lengths have the mean and spread they are named for; a wrong text names the flag."""

from __future__ import annotations

import statistics
from pathlib import Path
from random import Random

import pytest

from tailrace.bench.lengths import parse_lengths
from tailrace.errors import ConfigError


def sample(text: str, count: int = 20_000, column: str = "") -> list[int]:
    draw, rng = parse_lengths(text, "--input", column), Random("lengths")
    return [draw(rng) for _ in range(count)]


def test_fixed_and_a_bare_number_are_the_same() -> None:
    assert sample("fixed:7", 3) == sample("7", 3) == [7, 7, 7]


def test_uniform_takes_both_ends() -> None:
    assert set(sample("uniform:3-6", 500)) == {3, 4, 5, 6}


def test_normal() -> None:
    values = sample("normal:400,50")
    assert statistics.fmean(values) == pytest.approx(400, rel=0.01)
    assert statistics.pstdev(values) == pytest.approx(50, rel=0.03)


def test_lognormal_mean_is_that_of_the_lengths() -> None:
    values = sample("lognormal:1000,0.5", 100_000)
    assert statistics.fmean(values) == pytest.approx(1000, rel=0.01)
    assert statistics.median(values) == pytest.approx(1000 * 0.8825, rel=0.02)  # mean * exp(-sigma^2 / 2)


def test_nothing_is_below_one_token() -> None:
    assert min(sample("normal:2,50", 1000)) == 1


def test_from_a_file(tmp_path: Path) -> None:
    plain, table = tmp_path / "plain.txt", tmp_path / "table.csv"
    plain.write_text("5\n9\n\n12\n")
    table.write_text("input_tokens,output_tokens\n100,7\n200,8\n")
    assert set(sample(f"file:{plain}", 200)) == {5, 9, 12}
    assert set(sample(f"file:{table}", 200, "output_tokens")) == {7, 8}


@pytest.mark.parametrize(
    "text", ["", "fixed", "fixed:x", "uniform:9-3", "uniform:3", "lognormal:0,1", "zipf:3", "normal:1", "fixed:-3"]
)
def test_a_wrong_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--output ") as raised:
        parse_lengths(text, "--output")
    assert raised.value.param == "--output"


@pytest.mark.parametrize("content", [None, "", "input_tokens\n", "a,b\n1,2\n", "1\nx\n"])
def test_a_file_without_lengths_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "lengths.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="--input"):
        parse_lengths(f"file:{path}", "--input", "input_tokens")
