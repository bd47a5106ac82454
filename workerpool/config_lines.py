"""On which line of a TOML text each key stands. No I/O.

The standard parser gives values without places. This one gives places without values: it walks over a text that the
parser has accepted, knows strings, comments and brackets just well enough not to be fooled by them, and notes where
each table and key begins. Of a text that is no TOML the answer is incomplete, never an exception.
"""

from __future__ import annotations

import re

KeyPath = tuple[str, ...]

_DEEPEST = 8  # no key that means anything is deeper

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?!")'
    r"|'''.*?'''(?!')"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_KEY_PART = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)')[ \t]*(\.)?""")
_BRACKETS = re.compile(r"\[{1,2}")
_EQUALS = re.compile(r"[ \t]*=?[ \t]*")
_REST_OF_LINE = re.compile(r"[^\n]*")
_BARE_VALUE = re.compile(r"""[^\[\]{},#"'\n]+""")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2})|(.))")
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


def key_lines(text: str) -> dict[KeyPath, int]:
    """The first line (from 1) of each table and key by its full path; tables in an array share the array's path."""
    lines: dict[KeyPath, int] = {}
    line, reached = 1, 0
    for path, at in _Walk(text).run():
        line, reached = line + text.count("\n", reached, at), at
        for depth in range(1, len(path) + 1):
            lines.setdefault(path[:depth], line)
    return lines


class _Walk:
    """One walk over a text; `at` is the place reached, and every step moves it forward."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: list[tuple[KeyPath, int]] = []

    def run(self) -> list[tuple[KeyPath, int]]:
        """Every key in the order of the text, and where it begins."""
        table: KeyPath = ()
        while self._skip(_BLANK) and self.at < len(self.text):
            start = self.at
            if self._here() == "[":
                table = self._header()
            else:
                self._value(self._key(table))
            self.at = max(self.at, start + 1)
        return self.found

    def _header(self) -> KeyPath:
        start = self.at
        self._skip(_BRACKETS)
        path = self._key((), start)
        self._skip(_REST_OF_LINE)
        return path

    def _key(self, table: KeyPath, start: int | None = None) -> KeyPath:
        """Take a dotted key below `table` and note where it begins; its full path."""
        start = self.at if start is None else start
        parts = list(table)
        while match := _KEY_PART.match(self.text, self.at):
            bare, quoted, literal, more = match.groups()
            parts.append(_unescape(quoted) if quoted is not None else bare or literal or "")
            self.at = match.end()
            if not more:
                break
        path = tuple(parts[:_DEEPEST])
        self.found.append((path, start))
        return path

    def _value(self, path: KeyPath) -> None:
        """Walk over `= value`, noting the keys of the inline tables in it."""
        self._skip(_EQUALS)
        open_brackets: list[tuple[str, KeyPath]] = []
        while self.at < len(self.text):
            here = self._here()
            if here in "[{" or (here == "," and open_brackets):
                if here != ",":
                    open_brackets.append((here, path))
                self.at += 1
                path = self._next_in(*open_brackets[-1])
            elif here in "]}" and open_brackets:
                self.at += 1
                path = open_brackets.pop()[1]
            elif not (self._skip(_STRING) or self._skip(_BARE_VALUE)):
                self.at += 1
            if not open_brackets:
                return
            self._skip(_BLANK)

    def _next_in(self, bracket: str, path: KeyPath) -> KeyPath:
        """Where the next value inside a bracket belongs: an inline table's has a key of its own before it."""
        self._skip(_BLANK)
        if bracket == "[" or self._here() == "}":
            return path
        key = self._key(path)
        self._skip(_EQUALS)
        return key

    def _here(self) -> str:
        return self.text[self.at : self.at + 1] or "\n"

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match is not None


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: _unescaped(*found.groups()), text)


def _unescaped(*forms: str | None) -> str:
    *codes, letter = forms
    code = next((code for code in codes if code), None)
    if code is None:
        return _ESCAPED.get(letter or "", letter or "")
    return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else "\ufffd"
