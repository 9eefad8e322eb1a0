"""Prints C: indentation, blocks, loops.  Knows the language, not Gemmini."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from fadiff.converter.names import printable
from fadiff.emitters.gemmini.expression import Expr, bare

WIDTH = 110
"""Columns of a line."""
Lines = AbstractContextManager[None]
"""What is printed in its `with` block stands inside of something."""


class CPrinter:
    """Collects lines at the current indentation; what is longer than `width` is wrapped."""

    def __init__(self, width: float = WIDTH) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._width = width

    def line(self, text: str = "") -> None:
        """One line as is, indented."""
        self._lines.append(f"{'    ' * self._depth}{text}" if text else "")

    def comment(self, *lines: str) -> None:
        """A block comment; comment ends inside the text are broken up, control characters are escapes."""
        safe = [printable(text).replace("*/", "* /").replace("/*", "/ *") for text in lines]
        if len(safe) == 1:
            self.line(f"/* {safe[0]} */")
            return
        self.line(f"/* {safe[0]}")
        for text in safe[1:]:
            self.line(f" * {text}")
        self.line(" */")

    def constant(self, name: str, value: Expr, ctype: str = "int32_t") -> None:
        """`const ctype name = value;`."""
        self.line(f"const {ctype} {name} = {bare(value)};")

    def call(self, function: str, *arguments: Expr) -> None:
        """A call statement, wrapped when longer than a line."""
        self._call(function, [bare(a) for a in arguments])

    def _call(self, function: str, arguments: Sequence[str]) -> None:
        line = f"{function}({', '.join(arguments)});"
        if self._fits(line):
            self.line(line)
            return
        self.line(f"{function}(")
        self._wrapped([f"{text}," for text in arguments[:-1]] + [f"{arguments[-1]});"], "    ")

    def fields(self, head: str, fields: Sequence[str]) -> None:
        """`head = { ... };` of short fields: on one line where they fit, else as many to a line as fit."""
        line = f"{head} = {{{', '.join(fields)}}};"
        if self._fits(line):
            self.line(line)
            return
        with self.initialiser(head):
            self._wrapped([f"{field}," for field in fields])

    def relay(self, lines: Sequence[str]) -> None:
        """Lines of another printer (of calls and initialisers that no width wrapped) at this indentation."""
        depth = self._depth
        for line in lines:
            text = line.lstrip()
            self._depth = depth + (len(line) - len(text)) // 4
            if text.endswith(");"):
                function, _, arguments = text.removesuffix(");").partition("(")
                self._call(function, _split(arguments))
            elif text.endswith("};") and " = {" in text:
                head, _, fields = text.removesuffix("};").partition(" = {")
                self.fields(head, _split(fields))
            else:
                self.line(text)
        self._depth = depth

    def _fits(self, line: str) -> bool:
        return len(line) + 4 * self._depth <= self._width

    def _wrapped(self, pieces: Sequence[str], indent: str = "") -> None:
        """As many pieces to a line as fit."""
        current = ""
        for piece in pieces:
            if current and not self._fits(f"{indent}{current} {piece}"):
                self.line(f"{indent}{current}")
                current = ""
            current += f" {piece}" if current else piece
        self.line(f"{indent}{current}")

    @contextmanager
    def braces(self, opening: str, closing: str = "}") -> Iterator[None]:
        """Lines between `opening` and `closing` are indented once more."""
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1
        self.line(closing)

    def block(self, head: str) -> Lines:
        """`head { ... }`; an `else` joins the brace before it."""
        if head == "else":
            self._lines.pop()
            head = "} else"
        return self.braces(f"{head} {{")

    def scope(self) -> Lines:
        """`{ ... }`."""
        return self.braces("{")

    def function(self, signature: str) -> Lines:
        """A function definition, brace on its own line."""
        self.line(signature)
        return self.braces("{")

    def initialiser(self, head: str) -> Lines:
        """`head = { ... };`."""
        return self.braces(f"{head} = {{", "};")

    def loop(self, variable: str, bound: Expr, step: Expr = 1) -> Lines:
        """`for (int32_t variable = 0; variable < bound; variable += step)`."""
        advance = f"{variable}++" if step == 1 else f"{variable} += {bare(step)}"
        return self.block(f"for (int32_t {variable} = 0; {variable} < {bare(bound)}; {advance})")

    @property
    def lines(self) -> tuple[str, ...]:
        """Everything printed so far."""
        return tuple(self._lines)

    @property
    def text(self) -> str:
        """Everything printed so far, newline terminated."""
        return "\n".join(self._lines) + "\n"


def _split(text: str) -> list[str]:
    """What commas separate outside of all brackets."""
    depth, parts = 0, [""]
    for char in text:
        depth += (char in "({") - (char in ")}")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]
