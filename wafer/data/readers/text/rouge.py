"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): F1 of n-grams and of the longest common subsequence.

Words are runs of letters and digits, lower-cased, not stemmed, as in the ``rouge-score`` package
(which would bring nltk and absl).
"""

import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Split a text into the words that are compared."""
    return _WORD.findall(text.lower())


def _f1(same: int, ours: int, theirs: int) -> float:
    return 2 * same / (ours + theirs) if same else 0.0


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        above = 0
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], above + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def rouge_words(ours: Sequence[str], theirs: Sequence[str]) -> dict[str, float]:
    """Compare two word sequences: ``rouge1``, ``rouge2``, ``rougeL`` in [0, 1]."""
    scores = {}
    for n in (1, 2):
        a, b = _ngrams(ours, n), _ngrams(theirs, n)
        scores[f"rouge{n}"] = _f1(sum((a & b).values()), sum(a.values()), sum(b.values()))
    scores["rougeL"] = _f1(_longest_common(ours, theirs), len(ours), len(theirs))
    return scores


def rouge(summary: str, reference: str) -> dict[str, float]:
    """Compare two texts.

    >>> rouge("the cat sat", "the cat ran")["rouge2"]
    0.5
    """
    return rouge_words(words(summary), words(reference))
