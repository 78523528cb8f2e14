"""Shared and kept pages: what is found is what was written, nothing shared is written, and no page is lost."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from engine.cache import PagePool, PageTable
from engine.prefix import Match, PrefixIndex

SIZE = 3
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple)  # two tokens: texts often begin alike


class Request:
    """One request: its text so far and its pages."""

    def __init__(self, table: PageTable, text: tuple[int, ...], drafted: bool) -> None:
        self.table, self.text, self.drafted = table, text, drafted


class PrefixMachine(RuleBasedStateMachine):
    """Requests come with any text, grow and end; `rows` stands for the caches: what was written into each slot."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(8, SIZE, keep_prefixes=True)
        self.rows: dict[int, tuple[tuple[int, ...], bool]] = {}  # slot -> (the text up to its token, drafted)
        self.alive: list[Request] = []

    @property
    def index(self) -> PrefixIndex:
        assert self.pool.index is not None
        return self.pool.index

    @rule(target=running, text=TEXTS, drafted=st.booleans())
    def begin(self, text: tuple[int, ...], drafted: bool) -> object:
        table = PageTable(self.pool)
        match = self.index.find(text[:-1], drafted=drafted)
        table.share(match.pages)
        known = len(match.pages) * SIZE
        self.check(table.pages, text, known, drafted)
        if match.rows:
            self.check([*match.pages, match.partial], text, match.tokens(SIZE), drafted)
        if table.grow(len(text)) < len(text):
            table.release()
            return multiple()
        self.write(table, text, known, drafted)
        self.alive.append(Request(table, text, drafted))
        return self.alive[-1]

    @rule(sequence=running, more=TEXTS)
    def go_on(self, sequence: Request, more: tuple[int, ...]) -> None:
        longer = sequence.text + more
        if sequence.table.grow(len(longer)) >= len(longer):
            self.write(sequence.table, longer, len(sequence.text), sequence.drafted)
            sequence.text = longer

    @rule(sequence=running)
    def become_known(self, sequence: Request) -> None:
        self.index.insert(sequence.text, sequence.table.pages, drafted=sequence.drafted)

    @rule(sequence=consumes(running))
    def end(self, sequence: Request) -> None:
        self.index.insert(sequence.text, sequence.table.pages, drafted=sequence.drafted)
        sequence.table.release()
        self.alive.remove(sequence)

    def write(self, table: PageTable, text: tuple[int, ...], start: int, drafted: bool) -> None:
        holders = [page for other in self.alive for page in other.table.pages if other.table is not table]
        for position in range(start, len(text)):
            page = table.pages[position // SIZE]
            assert page not in holders, "a page that others hold is written"
            assert page not in self.index, "a page whose text is known is written"
            self.rows[page * SIZE + position % SIZE] = (text[: position + 1], drafted)

    def check(self, pages: Sequence[int], text: tuple[int, ...], tokens: int, drafted: bool) -> None:
        for position in range(tokens):
            written, has_drafts = self.rows[pages[position // SIZE] * SIZE + position % SIZE]
            assert written == text[: position + 1]
            assert has_drafts or not drafted

    @invariant()
    def every_page_is_held_or_free_and_kept_ones_are_known(self) -> None:
        held = {page for sequence in self.alive for page in sequence.table.pages}
        assert self.pool.used == len(held)
        assert self.pool.used + self.pool.free == self.pool.total
        assert self.pool.kept == sum(page in self.index and page not in held for page in range(8))

    @invariant()
    def running_texts_are_where_their_tables_say(self) -> None:
        for sequence in self.alive:
            self.check(sequence.table.pages, sequence.text, len(sequence.text), sequence.drafted)


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


def test_a_forgotten_page_takes_with_it_what_could_never_be_found_again() -> None:
    index = PrefixIndex(2)
    index.insert([1, 2, 3, 4, 5, 6], [7, 8, 9], drafted=True)
    index.insert([1, 2, 9, 9], [7, 5], drafted=True)
    assert index.find([1, 2, 3, 4, 5, 6, 7], drafted=True) == Match((7, 8, 9))
    assert index.find([1, 2, 3, 0], drafted=True) == Match((7,), 8, 1)
    assert index.find([1, 2, 3, 4], drafted=False) == Match((7, 8)), "rows with drafts serve those without as well"
    assert sorted(index.forget(7)) == [5, 7, 8, 9]
    assert len(index) == 0 and index.find([1, 2, 3, 4], drafted=True) == Match()
