"""Lookup: what follows the last tokens where they stood before, in prompt or answer, as more branches of the draft tree.

A language model repeats itself and its prompt: names, code, a text it corrects. Where its last tokens have occurred before, what
followed them then is a guess that costs nothing to make ("prompt lookup"). The same holds behind every path that the drafter has
guessed: where it got into a repetition, the text knows how that goes on. The target judges it as it judges the drafter's guesses.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.tree import DraftTree

SHORTEST = 2
"""Tokens that must have occurred before."""
LONGEST = 32
"""A longer agreement is not told from this one, and no guess reaches deeper into a tree."""
PLACES = 8
"""Earlier occurrences looked at, the latest ones."""
PATIENCE = 4.0
"""Expected misses after which a request's own experience weighs as much as the rule of thumb."""


@dataclass(frozen=True)
class Branch:
    """A guessed continuation: `token_ids`, and `log_weights`, natural logs of the chance that it holds up to and with each."""

    token_ids: tuple[int, ...]
    log_weights: tuple[float, ...]


@dataclass
class Lookup:
    """One request's text so far, indexed by its pairs of tokens, and how guesses of this kind have fared in it.

    With `adapts` the chance of a miss is scaled by experience in this request; what a request does never depends on another one.
    """

    adapts: bool
    text: list[int] = field(default_factory=list)
    places: dict[tuple[int, ...], list[int]] = field(default_factory=lambda: defaultdict(list))
    expected_misses: float = 0.0
    misses: int = 0
    found: tuple[int, int, int] = (0, 0, -1)  # (text length, and the agreement there)

    def read(self, tokens: Sequence[int]) -> None:
        """Take in what follows the text."""
        for token in tokens:
            self.text.append(token)
            if len(self.text) >= SHORTEST:
                self.places[tuple(self.text[-SHORTEST:])].append(len(self.text) - 1)

    def guess(self, most: int, after: tuple[int, ...] = ()) -> Branch:
        """At most `most` tokens after the longest recent agreement with the text's end; empty where its last pair is new.

        `after`: tokens taken to follow the text, the drafter's own guess.
        """
        length, place = self._agreement(after)
        token_ids = tuple(self.text[place + 1 : place + 1 + min(most, LONGEST)]) if length else ()
        log_weights, weight = [], 0.0
        for ahead in range(len(token_ids)):
            weight += math.log1p(-self.miss_chance(length + ahead))
            log_weights.append(weight)
        return Branch(token_ids, tuple(log_weights))

    def branches(self, tree: DraftTree, most: int) -> Iterator[tuple[int, Branch]]:
        """(node, what the text suggests after the path to it), for the nodes of `tree` where it suggests something."""
        paths: list[tuple[int, ...]] = []
        for node in range(len(tree)):
            paths.append((*paths[tree.parents[node]], tree.token_ids[node]) if node else ())
            branch = self.guess(max(min(most, LONGEST) - tree.depths[node], 0), paths[node])
            if branch.token_ids:
                yield node, branch

    def miss_chance(self, length: int) -> float:
        """The chance that the next token differs after an agreement of `length` tokens.

        1 / (length + 1/2) follows what 900 greedy answers of the bundled model showed, at most 0.1 below it: 0.41 at two tokens, 0.32 at
        four, 0.15 at eight, 0.07 at sixteen.
        """
        scale = (self.misses + PATIENCE) / (self.expected_misses + PATIENCE) if self.adapts else 1.0
        return min(scale * _rule_of_thumb(length), 0.98)

    def learn(self, tokens: Sequence[int]) -> None:
        """Compare the guess at this point, made or not, with the tokens that the target then gave; then read them."""
        length, place = self._agreement()
        if length:
            for ahead, (token, guessed) in enumerate(zip(tokens, self.text[place + 1 :], strict=False)):
                self.expected_misses += _rule_of_thumb(length + ahead)
                if token != guessed:
                    self.misses += 1
                    break
        self.read(tokens)

    def _agreement(self, after: tuple[int, ...] = ()) -> tuple[int, int]:
        """(tokens that agree, where the earlier ones end): the longest among the latest places, the later of equals; (0, -1) for none."""
        if not after and self.found[0] == len(self.text):
            return self.found[1:]
        earlier = self.places.get((*self.text[-SHORTEST:], *after)[-SHORTEST:], [])
        if not after:  # the last of them is the text's end itself
            earlier = earlier[:-1]
        best = (0, -1)
        if earlier:
            end = (*self.text[-LONGEST:], *after)[-LONGEST:]
            for place in earlier[-PLACES:]:
                length = 0
                while length < min(len(end), place + 1) and self.text[place - length] == end[-1 - length]:
                    length += 1
                best = max(best, (length, place))
        if not after:
            self.found = (len(self.text), *best)
        return best


def _rule_of_thumb(length: int) -> float:
    return 1.0 / (length + 0.5)


def graft(tree: DraftTree, branches: Iterable[tuple[int, Branch]], budget: int) -> DraftTree:
    """`tree` with each branch behind its node: common nodes are shared, the `budget` likeliest of all drafted nodes stay, best first.

    A branch's chances are those once its node is accepted. A shared node has the larger of both weights. `grafted` of the result
    names the nodes that the branches alone have brought.
    """
    branches = list(branches)
    if not branches:
        return tree
    tokens, parents, depths = list(tree.token_ids), list(tree.parents), list(tree.depths)
    weights = list(tree.log_weights)
    child = {(parents[node], tokens[node]): node for node in range(1, len(tree))}
    for start, branch in branches:
        at, start_weight = start, weights[start]
        for token, weight in zip(branch.token_ids, branch.log_weights, strict=True):
            node = child.get((at, token))
            if node is None:
                node = child[at, token] = len(tokens)
                tokens.append(token)
                parents.append(at)
                depths.append(depths[at] + 1)
                weights.append(start_weight + weight)
            else:
                weights[node] = max(weights[node], start_weight + weight)
            at = node
    # A node weighs no more than its parent, and stands after it: a stable sort keeps parents first.
    order = [0, *sorted(range(1, len(tokens)), key=lambda node: -weights[node])][: budget + 1]
    place = {old: new for new, old in enumerate(order)}
    return DraftTree(
        tuple(tokens[node] for node in order),
        (-1, *(place[parents[node]] for node in order[1:])),
        tuple(depths[node] for node in order),
        tuple(weights[node] for node in order),
        frozenset(place[node] for node in order if node >= len(tree)),
        tuple(place[node] for node in tree.first_choices() if node in place),
    )
