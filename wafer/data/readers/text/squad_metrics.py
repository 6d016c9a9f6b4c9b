"""Exact match and F1 of answers, by SQuAD's official rules (Rajpurkar et al. 2016, section 6.1)."""

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower-case, drop punctuation and articles, collapse white space.

    >>> normalize("The  U.S. Army!")
    'us army'
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(predicted: str, truth: str) -> float:
    """1 when both normalize to the same text."""
    return float(normalize(predicted) == normalize(truth))


def f1(predicted: str, truth: str) -> float:
    """Harmonic mean of precision and recall over words.

    >>> f1("the big cat", "a cat")
    0.6666666666666666
    """
    ours, theirs = normalize(predicted).split(), normalize(truth).split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)
