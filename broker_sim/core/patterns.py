"""Regular expressions in RE2's syntax, matched in time that is linear in the text.

A pattern comes from a client, so no pattern may make the broker think for long: the pattern is
compiled to a program of a few instructions (Thompson's construction) and all its threads walk over
the text together, one step a character. There are no captures and no back references.

Syntax: RE2's, as in Kafka, which uses RE2/J (KIP-1152): literals, `.`, classes with ranges, Perl
and POSIX names, `\\pL` categories, groups, `|`, `* + ? {n,m}` and their lazy forms, `^ $ \\A \\z
\\b \\B`, `\\Q..\\E`, the flags i, m, s and U. Unicode scripts such as `\\p{Greek}` are refused.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace

Predicate = Callable[[str], bool]
Fragment = tuple["_Instruction", ...]

REPEAT_MAX = 1000
INSTRUCTIONS_MAX = 2_000
NESTING_MAX = 50


class InvalidPattern(ValueError):
    """The text is not a regular expression that is supported; says why."""


@dataclass(frozen=True, slots=True)
class _Instruction:
    """`take` a character and go on, check a position (`at`), or go to `targets`, relative to here.

    Without any of them the thread has matched.
    """

    take: Predicate | None = None
    at: Callable[[str, int], bool] | None = None
    targets: tuple[int, ...] = (1,)


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        self._program = (*_Parser(text).parse(), _Instruction(targets=()))

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        threads = self._follow([0], text, 0)
        for position, character in enumerate(text):
            program = self._program
            taken = [
                index + 1
                for index in threads
                if (take := program[index].take) is not None and take(character)
            ]
            threads = self._follow(taken, text, position + 1)
        return any(not self._program[index].targets for index in threads)

    def _follow(self, start: list[int], text: str, position: int) -> list[int]:
        """The threads that wait for a character, or have matched, after all free moves."""
        seen, waiting, stack = set(start), [], list(start)
        while stack:
            index = stack.pop()
            instruction = self._program[index]
            if instruction.take is not None or not instruction.targets:
                waiting.append(index)
                continue
            if instruction.at is not None and not instruction.at(text, position):
                continue
            for target in instruction.targets:
                if index + target not in seen:
                    seen.add(index + target)
                    stack.append(index + target)
        return waiting


# --------------------------------------------------------------------------- positions


def _at_start(text: str, position: int) -> bool:
    del text
    return position == 0


def _at_end(text: str, position: int) -> bool:
    return position == len(text)


def _at_line_start(text: str, position: int) -> bool:
    return position == 0 or text[position - 1] == "\n"


def _at_line_end(text: str, position: int) -> bool:
    return position == len(text) or text[position] == "\n"


def _at_word_boundary(text: str, position: int) -> bool:
    before = position > 0 and _is_word(text[position - 1])
    after = position < len(text) and _is_word(text[position])
    return before != after


def _off_word_boundary(text: str, position: int) -> bool:
    return not _at_word_boundary(text, position)


# --------------------------------------------------------------------------- characters


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


def _one_of(characters: str) -> Predicate:
    return lambda character: character in characters


_PERL: dict[str, Predicate] = {
    "d": _one_of("0123456789"),
    "s": _one_of("\t\n\f\r "),
    "w": _is_word,
}
_POSIX: dict[str, Predicate] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": str.isascii,
    "blank": _one_of("\t "),
    "cntrl": lambda c: ord(c) < 32 or ord(c) == 127,
    "digit": _PERL["d"],
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: "a" <= c <= "z",
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": _one_of("\t\n\v\f\r "),
    "upper": lambda c: "A" <= c <= "Z",
    "word": _is_word,
    "xdigit": _one_of("0123456789abcdefABCDEF"),
}
_ESCAPES = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_POSITIONS = {"A": _at_start, "z": _at_end, "b": _at_word_boundary, "B": _off_word_boundary}


def _negated(predicate: Predicate) -> Predicate:
    return lambda character: not predicate(character)


def _range(first: str, last: str, ignore_case: bool) -> Predicate:
    if not ignore_case:
        return lambda character: first <= character <= last
    return lambda c: any(first <= each <= last for each in (c, c.lower(), c.upper()))


def _category(name: str) -> Predicate:
    return lambda character: unicodedata.category(character).startswith(name)


_CATEGORY_KINDS = {"C": "cfos", "L": "lmotu", "M": "cen", "N": "dlo", "P": "cdefios", "S": "ckmo",
                   "Z": "lps"}  # fmt: skip
_CATEGORIES = frozenset(_CATEGORY_KINDS) | frozenset(
    major + minor for major, minors in _CATEGORY_KINDS.items() for minor in minors
)


# --------------------------------------------------------------------------- the parser


@dataclass(frozen=True, slots=True)
class _Flags:
    """i: ignore case, m: ^ and $ at each line, s: `.` takes a new line. U changes no match."""

    i: bool = False
    m: bool = False
    s: bool = False
    U: bool = False


class _Parser:
    """Recursive descent over the pattern; every method returns a fragment of the program."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags = _Flags()
        self._depth = 0

    def parse(self) -> Fragment:
        fragment = self._alternatives()
        if self._at < len(self._text):
            raise InvalidPattern("unexpected )")
        return fragment

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _accept(self, text: str) -> bool:
        if not self._peek(text):
            return False
        self._at += len(text)
        return True

    def _next(self, missing: str) -> str:
        if self._at >= len(self._text):
            raise InvalidPattern(missing)
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str, missing: str) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            raise InvalidPattern(missing)
        found = self._text[self._at : stop]
        self._at = stop + len(end)
        return found

    # ------------------------------------------------------------ structure

    def _alternatives(self) -> Fragment:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise InvalidPattern("nested too deep")
        fragment = self._sequence()
        while self._accept("|"):
            other = self._sequence()
            fork = _Instruction(targets=(1, len(fragment) + 2))
            fragment = (fork, *fragment, _Instruction(targets=(len(other) + 1,)), *other)
            if len(fragment) > INSTRUCTIONS_MAX:
                raise InvalidPattern("too large")
        self._depth -= 1
        return fragment

    def _sequence(self) -> Fragment:
        parts: list[_Instruction] = []
        while self._at < len(self._text) and not self._peek("|") and not self._peek(")"):
            parts.extend(self._repeated())
            if len(parts) > INSTRUCTIONS_MAX:
                raise InvalidPattern("too large")
        return tuple(parts)

    def _repeated(self) -> Fragment:
        start = self._at
        fragment = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return fragment
        if start == self._at:
            raise InvalidPattern("missing argument to repetition operator")
        self._accept("?")  # lazy or greedy: the same texts match
        if self._bounds() is not None:
            raise InvalidPattern("invalid nested repetition operator")
        return _repeat(fragment, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """(least, most or None for any number) of a repetition operator here."""
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(operator):
                return bounds
        if not self._peek("{"):
            return None
        stop = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : stop].partition(",")
        if stop < 0 or not _is_number(least) or not (most == "" or _is_number(most)):
            return None  # as it stands, for RE2 too
        low = int(least)
        high = None if comma and not most else int(most or least)
        if low > REPEAT_MAX or (high is not None and not low <= high <= REPEAT_MAX):
            raise InvalidPattern("invalid repeat count")
        self._at = stop + 1
        return low, high

    def _atom(self) -> Fragment:
        if self._accept("("):
            return self._group()
        if self._accept("["):
            return (_Instruction(take=self._class()),)
        if self._accept("\\"):
            return self._escape()
        if self._bounds() is not None:
            raise InvalidPattern("missing argument to repetition operator")
        character = self._next("nothing here")
        if character == ".":
            return (_Instruction(take=_any if self._flags.s else _any_but_newline),)
        if character == "^":
            return (_Instruction(at=_at_line_start if self._flags.m else _at_start),)
        if character == "$":
            return (_Instruction(at=_at_line_end if self._flags.m else _at_end),)
        return (self._literal(character),)

    def _literal(self, character: str) -> _Instruction:
        return _Instruction(take=_range(character, character, self._flags.i))

    def _group(self) -> Fragment:
        outer = self._flags
        if self._accept("?"):
            if self._accept("P<") or self._accept("<"):
                name = self._until(">", "missing >")
                if not name.isidentifier() or not name.isascii():
                    raise InvalidPattern("invalid named capture")
            elif self._set_flags():
                return ()  # for the rest of the group around
        fragment = self._alternatives()
        if not self._accept(")"):
            raise InvalidPattern("missing closing )")
        self._flags = outer
        return fragment

    def _set_flags(self) -> bool:
        """After `(?`: flags up to `:` (a group follows, False) or `)` (True)."""
        value = True
        while True:
            flag = self._next("missing closing )")
            if flag in ":)":
                return flag == ")"
            if flag == "-" and value:
                value = False
            elif flag in ("i", "m", "s", "U"):
                self._flags = replace(self._flags, **{flag: value})
            else:
                raise InvalidPattern("invalid or unsupported Perl syntax")

    # ------------------------------------------------------------ characters

    def _escape(self) -> Fragment:
        character = self._next("trailing backslash at end of expression")
        if character in _POSITIONS:
            return (_Instruction(at=_POSITIONS[character]),)
        if character == "Q":
            stop = self._text.find("\\E", self._at)
            quoted = self._text[self._at :] if stop < 0 else self._text[self._at : stop]
            self._at = len(self._text) if stop < 0 else stop + 2
            return tuple(self._literal(each) for each in quoted)
        named = self._named_class(character)
        if named is not None:
            return (_Instruction(take=named),)
        return (self._literal(self._escaped_character(character)),)

    def _named_class(self, character: str) -> Predicate | None:
        if character.lower() in _PERL:
            known = _PERL[character.lower()]
            return known if character.islower() else _negated(known)
        if character not in "pP":
            return None
        name = self._next("invalid character class range")
        if name == "{":
            name = self._until("}", "invalid character class range")
        negated = (character == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if name not in _CATEGORIES and name != "Any":
            raise InvalidPattern(f"invalid character class range: {name}")
        known = _any if name == "Any" else _category(name)
        return _negated(known) if negated else known

    def _escaped_character(self, character: str) -> str:
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character == "x":
            digits = self._next("invalid escape sequence")
            if digits == "{":
                digits = self._until("}", "invalid escape sequence")
            else:
                digits += self._next("invalid escape sequence")
            if not 0 < len(digits) <= 8 or not all(map(_POSIX["xdigit"], digits)):
                raise InvalidPattern("invalid escape sequence")
            if int(digits, 16) > 0x10FFFF:
                raise InvalidPattern("invalid escape sequence")
            return chr(int(digits, 16))
        if character == "0":
            digits = ""
            while len(digits) < 2 and self._text[self._at : self._at + 1] in tuple("01234567"):
                digits += self._next("")
            return chr(int(digits or "0", 8))
        if character.isascii() and character.isalnum():
            raise InvalidPattern(f"invalid escape sequence: \\{character}")
        return character

    def _class(self) -> Predicate:
        """After `[`: the characters up to `]`."""
        negated = self._accept("^")
        parts: list[Predicate] = []
        while not parts or not self._peek("]"):
            parts.append(self._class_part())
        self._at += 1
        any_of = tuple(parts)
        if negated:
            return lambda character: not any(part(character) for part in any_of)
        return lambda character: any(part(character) for part in any_of)

    def _class_part(self) -> Predicate:
        if self._accept("[:"):
            name = self._until(":]", "missing closing ]")
            known = _POSIX.get(name.removeprefix("^"))
            if known is None:
                raise InvalidPattern(f"invalid character class range: {name}")
            return _negated(known) if name.startswith("^") else known
        first = self._class_character()
        if not isinstance(first, str):
            return first
        if not self._peek("-") or self._text.startswith("-]", self._at):
            return _range(first, first, self._flags.i)
        self._at += 1
        last = self._class_character()
        if not isinstance(last, str) or last < first:
            raise InvalidPattern("invalid character class range")
        return _range(first, last, self._flags.i)

    def _class_character(self) -> str | Predicate:
        character = self._next("missing closing ]")
        if character != "\\":
            return character
        escaped = self._next("missing closing ]")
        return self._named_class(escaped) or self._escaped_character(escaped)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _any(character: str) -> bool:
    return bool(character)


def _any_but_newline(character: str) -> bool:
    return character != "\n"


def _repeat(fragment: Fragment, least: int, most: int | None) -> Fragment:
    size = len(fragment)
    if size * max(least, most or 1) > INSTRUCTIONS_MAX:
        raise InvalidPattern("too large")
    parts = fragment * least
    if most is None:
        loop = _Instruction(targets=(1, size + 2))
        return (*parts, loop, *fragment, _Instruction(targets=(-size - 1,)))
    optional = most - least
    for left in range(optional, 0, -1):
        skip_all = left * (size + 1)
        parts = (*parts, _Instruction(targets=(1, skip_all)), *fragment)
    return parts
