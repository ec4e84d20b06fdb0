"""The text of an answer, put together from its pieces. Kept only where content is captured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import StringIO
from typing import NamedTuple

from otel_llm.emit.values import as_json

MOST_CHARACTERS = 1024 * 1024
"""What is kept of one reply at most, all channels together."""
MOST_CHOICES = 1024


class ToolCall(NamedTuple):
    """A call the model asks for; `arguments` is JSON as text, whole or as far as it came."""

    name: str
    arguments: str
    id: str | None = None


class _Call:
    __slots__ = ("arguments", "id", "name")

    def __init__(self, name: str, call_id: str | None) -> None:
        self.name = name
        self.id = call_id
        self.arguments = StringIO()


class _Choice:
    """One answer: its texts and its calls; `open` finds the call that goes on at an index."""

    __slots__ = ("calls", "open", "reasoning", "text")

    def __init__(self) -> None:
        self.text = StringIO()
        self.reasoning = StringIO()
        self.calls: list[_Call] = []
        self.open: dict[int, _Call] = {}


class Captured:
    """The answers of one reply. Pieces that are no text are left out.

    `cut` is True once something was left out because there was too much.
    """

    __slots__ = ("_choices", "_room", "cut")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, because the whole answer comes now."""
        self._choices: dict[int, _Choice] = {}
        self._room = MOST_CHARACTERS
        self.cut = False

    def text(self, choice: int, piece: object) -> None:
        """A piece of the answer."""
        if isinstance(piece, str) and piece:
            self._write(self._choice(choice).text, piece)

    def whole_text(self, choice: int, text: object) -> None:
        """The answer so far, of a server that repeats it; or a piece, if it does not go on."""
        if not isinstance(text, str):
            return
        before = self._choice(choice).text.getvalue()
        self.text(choice, text.removeprefix(before))

    def reasoning(self, choice: int, piece: object) -> None:
        """A piece of what the model thought."""
        if isinstance(piece, str) and piece:
            self._write(self._choice(choice).reasoning, piece)

    def call(
        self, choice: int, index: int | None, call_id: object, name: object, arguments: object
    ) -> None:
        """A piece of a tool call.

        A name begins a call, save where it repeats that of the open call with the same id. A
        piece without a name continues the call at its index, whatever id it has.
        """
        if isinstance(arguments, Mapping):
            arguments = as_json(arguments)
        text = arguments if isinstance(arguments, str) else ""
        title = name if isinstance(name, str) else ""
        if not (title or text):
            return
        kept = self._choice(choice)
        found = kept.open.get(-1 if index is None else index)
        if title and (found is None or _is_other(found, title, call_id)):
            found = self._begun(kept, index, title, call_id)
        elif found is None:
            found = kept.calls[-1] if kept.calls else self._begun(kept, index, "", call_id)
        self._write(found.arguments, text)

    def tool_calls(self) -> list[ToolCall]:
        """The calls of all choices, in order."""
        return [
            ToolCall(each.name, each.arguments.getvalue(), each.id)
            for choice in self._choices.values()
            for each in choice.calls
        ]

    def messages(self, finish_reasons: Mapping[int, str]) -> list[dict[str, object]]:
        """The answers in the conventions' form: role, parts, and why each one ended."""
        return [
            {"role": "assistant", "parts": _parts(kept), "finish_reason": finish_reasons.get(index)}
            for index, kept in sorted(self._choices.items())
        ]

    def answer(self, choice: int) -> tuple[str, str]:
        """Text and reasoning of one choice."""
        kept = self._choices.get(choice)
        return (kept.text.getvalue(), kept.reasoning.getvalue()) if kept else ("", "")

    def _choice(self, index: int) -> _Choice:
        index = min(index, MOST_CHOICES)
        found = self._choices.get(index)
        if found is None:
            found = self._choices[index] = _Choice()
        return found

    def _begun(self, kept: _Choice, index: int | None, name: str, call_id: object) -> _Call:
        taken = self._taken(name)
        call = _Call(taken, call_id[:256] if isinstance(call_id, str) else None)
        if not self.cut:
            kept.calls.append(call)
            kept.open[-1 if index is None else index] = call
        return call

    def _write(self, to: StringIO, piece: str) -> None:
        to.write(self._taken(piece))

    def _taken(self, piece: str) -> str:
        """As much of *piece* as there is room for."""
        if len(piece) > self._room:
            self.cut = True
            piece = piece[: self._room]
        self._room -= len(piece)
        return piece


def _is_other(call: _Call, name: str, call_id: object) -> bool:
    """Whether a named piece is another call than the open one at its index."""
    if isinstance(call_id, str) and call_id:
        return call_id[:256] != call.id
    return name != call.name


def _parts(kept: _Choice) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = []
    if reasoning := kept.reasoning.getvalue():
        parts.append({"type": "reasoning", "content": reasoning})
    if text := kept.text.getvalue():
        parts.append({"type": "text", "content": text})
    for call in kept.calls:
        part: dict[str, object] = {"type": "tool_call", "name": call.name}
        if call.id:
            part["id"] = call.id
        parts.append({**part, "arguments": _arguments(call.arguments.getvalue())})
    return parts


def _arguments(text: str) -> object:
    """Arguments as the object they are; as text where they are none, or came in part."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
