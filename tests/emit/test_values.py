"""Attribute values: what can be exported comes through as it is, nothing else does."""

from __future__ import annotations

import json
from enum import Enum, IntEnum, StrEnum
from math import inf, nan
from typing import Any

import pytest

from otel_llm.emit.values import (
    as_count,
    as_integer,
    as_json,
    as_number,
    as_text,
    as_texts,
    clean_text,
    clean_value,
    cleaned,
)


class Colour(Enum):
    """Its values are text or nothing."""

    RED = "red"
    NOTHING = None


class Level(IntEnum):
    """Its values are numbers."""

    HIGH = 3


class Kind(StrEnum):
    """Its members are text."""

    TOOL = "tool"


class NotGiven:
    """What clients put where the user said nothing."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


class TestCleanValue:
    """One value of any type."""

    @pytest.mark.parametrize("value", ["", "text", True, False, 0, -7, 0.0, 2.5, 2**63 - 1])
    def test_plain_values_stay(self, value: Any) -> None:
        """Values of allowed types keep their value and type."""
        found = clean_value(value)
        assert (value, type(value)) == (found, type(found))

    @pytest.mark.parametrize(
        "value",
        [None, NotGiven(), object(), nan, inf, -inf, 2**63, -(2**63) - 1, b"bytes", 1j, [], [None]],
    )
    def test_what_cannot_be_exported_is_absent(self, value: Any) -> None:
        """Nothing stands in for an unknown or impossible value."""
        assert clean_value(value) is None

    @pytest.mark.parametrize(
        ("value", "expected"),
        [(Colour.RED, "red"), (Colour.NOTHING, None), (Level.HIGH, 3), (Kind.TOOL, "tool")],
    )
    def test_enums_become_their_values(self, value: Enum, expected: object) -> None:
        """An enum is written as its value, of the value's plain type."""
        found = clean_value(value)
        assert expected == found
        assert not isinstance(found, Enum)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (["a", None, "b"], ("a", "b")),
            ((1, 2), (1, 2)),
            ([1, 2.5], (1.0, 2.5)),
            ([True, False], (True, False)),
            ([Colour.RED, Kind.TOOL], ("red", "tool")),
            ({"only"}, ("only",)),
            ([nan, 1.0], (1.0,)),
            (["a", 1], '["a", 1]'),
            ([True, 1], "[true, 1]"),
            ([["a"], ["b"]], '[["a"], ["b"]]'),
        ],
    )
    def test_lists(self, value: Any, expected: Any) -> None:
        """A list of one type stays a list without its gaps; a mixed one becomes JSON."""
        assert expected == clean_value(value)

    def test_mappings_become_json(self) -> None:
        """Structured content is one JSON string."""
        given = {"type": "text", "nested": {"n": 1, "colour": Colour.RED, "what": NotGiven()}}
        expected = {"type": "text", "nested": {"n": 1, "colour": "red", "what": "<NotGiven>"}}
        assert expected == json.loads(str(clean_value(given)))

    @pytest.mark.parametrize("value", [{"x": nan}, {("a", 1): 2}])
    def test_structure_that_is_no_json(self, value: Any) -> None:
        """Absent like anything that cannot be written."""
        assert clean_value(value) is None


class TestCleaned:
    """A whole set of attributes."""

    def test_only_what_can_be_exported(self) -> None:
        """Absent values leave no key behind."""
        given = {"a": None, "b": 1, "c": NotGiven(), "d": nan, 5: "five"}
        assert cleaned(given) == {"b": 1, "5": "five"}  # type: ignore[arg-type]

    def test_keys_are_mended_too(self) -> None:
        """Half an emoji in a key does not stop an export either."""
        assert list(cleaned({"k\ud83e": 1})) == ["k\ufffd"]


class TestCleanText:
    """Text that every encoder takes."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("cut \ud83e here", "cut \ufffd here"),
            ("tail \udd8a", "tail \ufffd"),
            ("whole \U0001f98a ok", "whole \U0001f98a ok"),
            ("pair \ud83e\udd8a", "pair \U0001f98a"),
            ("plain", "plain"),
            ("caf\u00e9 \u96ea", "caf\u00e9 \u96ea"),
            ("", ""),
        ],
    )
    def test_lone_surrogates_are_replaced(self, text: str, expected: str) -> None:
        """Everything else stays code point for code point."""
        assert expected == clean_text(text)

    def test_json_holds_no_lone_surrogate(self) -> None:
        """Structured content is mended after it was made into text."""
        assert as_json({"a": "\ud83e"}) == '{"a": "\ufffd"}'


class TestNumbers:
    """Counts and parameters as clients and engines write them."""

    @pytest.mark.parametrize(
        ("raw", "expected"),
        [(0, 0), (12.0, 12), ("12", 12), (" 5 ", 5), (2**63 - 1, 2**63 - 1)],
    )
    def test_counts(self, raw: object, expected: int) -> None:
        """A count is an integer, whatever its notation."""
        found = as_count(raw)
        assert (expected, int) == (found, type(found))

    @pytest.mark.parametrize(
        "raw",
        [None, True, -1, 1.5, nan, inf, 1e300, 2**63, "", "-1", "1.0", "x", "9" * 40, "\u0661", []],
    )
    def test_what_is_no_count(self, raw: object) -> None:
        """Anything unclear is unknown."""
        assert as_count(raw) is None

    @pytest.mark.parametrize(("raw", "expected"), [(0, 0.0), (1, 1.0), (0.7, 0.7), (-2, -2.0)])
    def test_numbers(self, raw: object, expected: float) -> None:
        """A number is a float."""
        found = as_number(raw)
        assert (expected, float) == (found, type(found))

    @pytest.mark.parametrize("raw", [None, True, "0.7", nan, inf, 10**400, NotGiven(), [1]])
    def test_what_is_no_number(self, raw: object) -> None:
        """Neither text nor infinity nor a sentinel is a number."""
        assert as_number(raw) is None

    @pytest.mark.parametrize(("raw", "expected"), [(7, 7), (7.0, 7), (-3.0, -3)])
    def test_integers(self, raw: object, expected: int) -> None:
        """A whole float is an integer."""
        found = as_integer(raw)
        assert (expected, int) == (found, type(found))

    @pytest.mark.parametrize("raw", [None, False, 7.5, nan, inf, "7", 2**63, -(2**63) - 1, 1e300])
    def test_what_is_no_integer(self, raw: object) -> None:
        """Anything else is left out."""
        assert as_integer(raw) is None


class TestTexts:
    """Text parameters."""

    @pytest.mark.parametrize(("raw", "expected"), [("a", "a"), (Colour.RED, "red")])
    def test_text(self, raw: object, expected: str) -> None:
        """Text and enums of text are text."""
        assert expected == as_text(raw)

    @pytest.mark.parametrize("raw", [None, "", 7, b"a", NotGiven(), Colour.NOTHING, Level.HIGH])
    def test_what_is_no_text(self, raw: object) -> None:
        """Empty text is as good as none."""
        assert as_text(raw) is None

    @pytest.mark.parametrize(
        ("raw", "expected"),
        [("END", ("END",)), (["END", None, ""], ("END",)), ([None], None), (7, None), ([], None)],
    )
    def test_texts(self, raw: object, expected: object) -> None:
        """One text or the texts of a list."""
        assert expected == as_texts(raw)
