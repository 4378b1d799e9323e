"""A search agent: an inverted index over one shelf of the library, ranked by BM25.

    python examples/newsroom/search.py 1/2

Several of them, each with another shelf, are asked together with `all()`. The index is built before the node starts: who can be
found can answer.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass

from library import Document, read_shelf, words_of

from reachmesh import ReachNode

SATURATION, LENGTH_SHARE = 1.2, 0.75  # k1 and b of BM25, at their usual values


@dataclass(frozen=True)
class Hit:
    """One document found."""

    title: str
    score: float
    text: str


class Index:
    """Word to the documents that have it, and how often."""

    def __init__(self) -> None:
        self.documents: list[Document] = []
        self.lengths: list[int] = []
        self.postings: defaultdict[str, dict[int, int]] = defaultdict(dict)

    def add(self, document: Document) -> None:
        words = Counter(words_of(document.title) + words_of(document.text))
        for word, count in words.items():
            self.postings[word][len(self.documents)] = count
        self.documents.append(document)
        self.lengths.append(words.total())

    def search(self, query: str, limit: int) -> list[Hit]:
        """The best `limit` documents, best first."""
        mean = sum(self.lengths) / len(self.lengths)
        scores: defaultdict[int, float] = defaultdict(float)
        for word in set(words_of(query)):
            found = self.postings.get(word, {})
            rarity = math.log(1 + (len(self.documents) - len(found) + 0.5) / (len(found) + 0.5))
            for number, count in found.items():
                length = 1 - LENGTH_SHARE + LENGTH_SHARE * self.lengths[number] / mean
                scores[number] += rarity * count * (SATURATION + 1) / (count + SATURATION * length)
        best = sorted(scores, key=lambda number: -scores[number])[:limit]
        return [Hit(self.documents[each].title, round(scores[each], 2), self.documents[each].text[:4000]) for each in best]


def main(place: str) -> None:
    shelf, _, shelves = place.partition("/")
    index = Index()
    for document in read_shelf(int(shelf), int(shelves)):
        index.add(document)
    print(f"shelf {place}: {len(index.documents)} documents, {len(index.postings)} words", flush=True)

    def search(query: str, limit: int = 3) -> list[Hit]:
        """Documents that fit a query, best first."""
        return index.search(query, limit)

    ReachNode("search", caps={"search": search}, tags={"shelf": place}).serve()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "1/1")
