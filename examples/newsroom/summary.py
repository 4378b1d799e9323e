"""A summariser: picks the sentences of a text that say most about a query. Start as many as there is work for; calls spread by load."""

from __future__ import annotations

import re
from collections import Counter

from library import words_of

from reachmesh import ReachNode, capability

SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\n\s*\n")
PROSE = re.compile(r"^[A-Z][^>{}=\\]{30,240}[.!?]$")


@capability("summarize", idempotent=True)
def summarize(text: str, query: str, sentences: int = 2) -> str:
    """The `sentences` best sentences of `text`, in their own order; "" when nothing in it reads like prose."""
    candidates = [" ".join(part.split()) for part in SENTENCE.split(text)]
    prose = [each for each in candidates if PROSE.match(each)]
    weight = Counter(words_of(text))
    for word in words_of(query):
        weight[word] += 10
    scored = {each: sum(weight[word] for word in set(words_of(each))) / (10 + len(each.split())) for each in prose}
    best = sorted(scored, key=lambda each: -scored[each])[:sentences]
    return " ".join(each for each in prose if each in best)


if __name__ == "__main__":
    ReachNode("summary", caps=[summarize]).serve()
