"""PrefixIndex: which full pages hold which text, so that prompts that begin alike share them.

A node is a page under the node of the page before it; its key is the page's tokens. Pages of requests that drafted and of
those that did not hang from different roots: only the former hold the drafter's rows as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

WITH_DRAFTS, WITHOUT_DRAFTS = -1, -2
"""The roots: page numbers that no page has."""


@dataclass(frozen=True)
class Match:
    """The longest known beginning of a text: whole `pages`, then the first `rows` rows of page `partial`, if any."""

    pages: tuple[int, ...] = ()
    partial: int = -1
    rows: int = 0

    def tokens(self, page_size: int) -> int:
        """Tokens the match covers."""
        return len(self.pages) * page_size + self.rows


@dataclass
class PrefixIndex:
    """Chains of full pages. Values are page numbers; who owns a page is the pool's affair."""

    page_size: int
    _children: dict[int, dict[tuple[int, ...], int]] = field(default_factory=dict)
    _place: dict[int, tuple[int, tuple[int, ...]]] = field(
        default_factory=dict
    )  # page -> (the page before, its tokens)

    def __contains__(self, page: int) -> bool:
        return page in self._place

    def __len__(self) -> int:
        return len(self._place)

    def find(self, token_ids: Sequence[int], *, drafted: bool) -> Match:
        """What is known of the beginning of `token_ids`, and whose drafter rows are there if `drafted`."""
        if drafted:
            return self._find(token_ids, WITH_DRAFTS)
        ways = (self._find(token_ids, root) for root in (WITHOUT_DRAFTS, WITH_DRAFTS))
        return max(ways, key=lambda match: match.tokens(self.page_size))

    def _find(self, token_ids: Sequence[int], root: int) -> Match:
        node, size = root, self.page_size
        pages: list[int] = []
        while True:
            first = len(pages) * size
            following = self._children.get(node, {}).get(tuple(token_ids[first : first + size]))
            if following is None:
                break
            pages.append(following)
            node = following
        if size == 1:  # a page of one token is known whole or not at all
            return Match(tuple(pages))
        rest = token_ids[len(pages) * size : (len(pages) + 1) * size]
        alike = ((_alike(tokens, rest), page) for tokens, page in self._children.get(node, {}).items())
        rows, partial = max(alike, default=(0, -1))
        return Match(tuple(pages), partial if rows else -1, rows)

    def insert(self, token_ids: Sequence[int], pages: Sequence[int], *, drafted: bool) -> None:
        """Make known that `pages` hold `token_ids` from the start. Only whole pages count; known texts keep their pages."""
        node, size = WITH_DRAFTS if drafted else WITHOUT_DRAFTS, self.page_size
        for number in range(min(len(pages), len(token_ids) // size)):
            tokens = tuple(token_ids[number * size : (number + 1) * size])
            siblings = self._children.setdefault(node, {})
            page = siblings.get(tokens)
            if page is None:
                page = pages[number]
                if page in self._place:  # it stands elsewhere already: its text is known under another parent
                    return
                siblings[tokens] = page
                self._place[page] = (node, tokens)
            node = page

    def forget(self, page: int) -> list[int]:
        """Drop a page and all that hang from it, which could never be found again -> the pages dropped."""
        if page not in self._place:
            return []
        parent, tokens = self._place.pop(page)
        siblings = self._children[parent]
        del siblings[tokens]
        if not siblings:
            del self._children[parent]
        dropped = [page]
        for child in list(self._children.get(page, {}).values()):
            dropped += self.forget(child)
        return dropped


def _alike(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
