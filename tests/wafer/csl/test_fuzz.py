"""Mutated programs: an error or a tree, never a crash; a tree survives the layout.

Of mutated rules the whole compiler makes a program or errors, too.
"""

import contextlib
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wafer.csl import CslError, Source, check as check_source, compile, format_text, read
from wafer.csl.syntax.lexer import KEYWORDS, tokenize

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.csl"))
RULES = sorted((Path(__file__).parent / "rules").rglob("*.csl"))
TEXTS = [path.read_text(encoding="utf-8") for path in PROGRAMS]
WORDS = sorted({token.text for text in TEXTS for token in tokenize(Source("", text)).code})
WORDS += [*sorted(KEYWORDS), "\n", "//", '"', "'", "0x", "1e", "\\", "@", "#", "\x00", "é", "€"]


def mutated(text, rng):
    """Some words of a program dropped, doubled, swapped, replaced or cut inside."""
    for _ in range(rng.randint(1, 4)):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(3))
        head, first, second, tail = (
            text[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)
        )
        near = rng.randrange(len(text) + 1)
        match rng.randrange(6):
            case 0:
                text = text[:near] + text[near + rng.randint(1, 20) :]
            case 1:
                text = f"{text[:near]} {rng.choice(WORDS)} {text[near:]}"
            case 2:
                text = text[:near] + rng.choice(WORDS) + text[near + 1 :]
            case 3:
                text = head + second + first + tail
            case 4:
                text = head + first[:200] + first + tail
            case 5:
                text = text[:near] if rng.random() < 0.2 else text
        text = text or "x"
    return text


def check(seed):
    """Whether the program of a seed is CSL; fails if that breaks a rule."""
    rng = random.Random(seed)
    source = Source("fuzz.csl", mutated(rng.choice(TEXTS), rng))
    try:
        parsed, problems = read(source), ()
    except CslError as error:
        parsed, problems = None, error.problems
    lines = source.text.count("\n") + 1
    assert all(1 <= p.at.line <= lines and p.at.column >= 1 for p in problems)
    if parsed is None:
        return False
    with contextlib.suppress(CslError):
        check_source(source)
    text = format_text(source)
    again = read(Source("again.csl", text))
    assert again.file == parsed.file
    assert [c.text for c in again.tokens.comments] == [c.text for c in parsed.tokens.comments]
    assert format_text(again.source) == text
    return True


def compiles(seed):
    """Whether the whole compiler takes the rule of a seed, mutated; it fails with errors alone."""
    rng = random.Random(seed)
    path = rng.choice(RULES)
    text = mutated(path.read_text(encoding="utf-8"), rng)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path.name
        target.write_text(text, encoding="utf-8")
        layout = Path(folder) / "one_pe.csl"
        layout.write_text((RULES[0].parents[1] / "one.csl").read_text(encoding="utf-8"))
        try:
            if "\nlayout {" in text:
                compile(target, import_paths=(str(path.parent),))
            else:
                compile(layout, {"file": target.name}, import_paths=(str(path.parent),))
        except CslError:
            return False
        except Exception as error:
            error.add_note(f"seed {seed}, {path}:\n{text}")
            raise
    return True


MANY = [pytest.param(1000, 10_000, what, marks=pytest.mark.slow) for what in ("check", "compiles")]


@pytest.mark.parametrize(
    ("first", "count", "what"), [(0, 100, "check"), (0, 200, "compiles"), *MANY]
)
def test_some_mutated_programs_and_rules_are_programs(first, count, what):
    """In a process without the suite's type checker."""
    command = [sys.executable, __file__, str(first), str(count), what]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert 0 < int(result.stdout) < count


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:3])
    passes = {"check": check, "compiles": compiles}[sys.argv[3]]
    sys.stdout.write(str(sum(map(passes, range(first, first + count)))))
