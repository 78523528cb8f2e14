"""The draft tree as a picture: depth grows to the right, the accepted path is the solid top line."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from console.snapshot import TreeFigures, TreeNode
from console.tui.glyphs import Glyphs, shown
from console.tui.tones import GOOD, LABEL_WIDTH, PLAIN, QUIET, Piece, label, row, within
from console.tui.view import View
from console.tui.words import percent

_LONGEST_TOKEN = 12


def draw_tree(view: View, width: int, height: int) -> list[Content]:
    """The newest sampled tree cut to the pane, then what it cost and kept."""
    snapshot = view.snapshot
    if snapshot is None:
        return []
    if snapshot.tree is None or not snapshot.tree.nodes:
        why = "speculation is off" if snapshot.settings.get("mode") == "off" else "none sampled yet"
        return [row("tree", (why, QUIET))]
    whole = [Content.assemble(*line) for line in picture(snapshot.tree.nodes, view.glyphs)]
    # A row whose first node stands beyond the edge would show branches and nothing on them.
    lines = [line for line in whole if _first_node(line, view.glyphs) < width - LABEL_WIDTH - 6]
    drawn = lines[: max(1, height - 1) if height else len(lines)]
    caption = _caption(view, snapshot.tree, len(whole) - len(drawn), width)
    out = [Content.assemble(label("tree" if index == 0 else ""), line) for index, line in enumerate(drawn)]
    return [*out, caption] if height != 1 else out


def _first_node(line: Content, glyphs: Glyphs) -> int:
    marks = (glyphs.dot, glyphs.ring, glyphs.looked_up, glyphs.looked_up_kept)
    places = (line.plain.find(f"{mark} ") for mark in marks)
    return min(place for place in places if place >= 0)


def picture(nodes: Sequence[TreeNode], glyphs: Glyphs) -> list[list[Piece]]:
    """The tree as lines of pieces; a node's likeliest or accepted child stands on its own line, the others below."""
    children: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(index)
    for brothers in children.values():
        brothers.sort(key=lambda index: (not nodes[index].accepted, -(nodes[index].probability or 0.0), index))
    return [line for root in children.get(-1, ()) for line in _grown(root, nodes, children, glyphs)]


def _grown(
    index: int,
    nodes: Sequence[TreeNode],
    children: dict[int, list[int]],
    glyphs: Glyphs,
) -> list[list[Piece]]:
    node = nodes[index]
    text = _label_text(node, glyphs)
    own: Piece = (text, f"bold {GOOD}" if node.accepted else PLAIN if node.parent < 0 else QUIET)
    brothers = children.get(index, [])
    if not brothers:
        return [[own]]
    blank = " " * len(text)
    lines: list[list[Piece]] = []
    for place, child in enumerate(brothers):
        tone = GOOD if nodes[child].accepted else QUIET
        first, last = place == 0, place == len(brothers) - 1
        for depth, line in enumerate(_grown(child, nodes, children, glyphs)):
            if depth:
                head: list[Piece] = [blank, ("   " if last else glyphs.branch_pass, QUIET)]
            elif first:
                head = [own, (glyphs.branch_only if last else glyphs.branch_first, tone)]
            else:
                head = [blank, (glyphs.branch_last if last else glyphs.branch_next, tone)]
            lines.append([*head, " ", *line])
    return lines


def _label_text(node: TreeNode, glyphs: Glyphs) -> str:
    if node.lookup:
        mark = glyphs.looked_up_kept if node.accepted else glyphs.looked_up
    else:
        mark = glyphs.dot if node.accepted or node.parent < 0 else glyphs.ring
    token = _token_text(node.text, glyphs)
    if len(token) > _LONGEST_TOKEN:
        token = token[: _LONGEST_TOKEN - len(glyphs.ellipsis)] + glyphs.ellipsis
    return f"{mark} {token}{_probability(node)} "


def _token_text(text: str, glyphs: Glyphs) -> str:
    """A token as it is read: without the blank that begins a word, line ends as \\n, blanks alone as dots."""
    if not text.strip():
        text = text.replace(" ", glyphs.middle_dot)
    elif text[0] == " ":
        text = text[1:]
    return shown(text.replace("\n", "\\n").replace("\t", "\\t"), glyphs)


def _probability(node: TreeNode) -> str:
    if node.probability is None or node.parent < 0:
        return ""
    return f" {node.probability:.2f}".replace(" 0.", " .")


def _caption(view: View, tree: TreeFigures, hidden: int, width: int) -> Content:
    """What the tree cost and kept, how much of it is hidden, and what trees bring on the whole."""
    snapshot = view.snapshot
    assert snapshot is not None
    drafts = len(tree.nodes) - 1
    parts = [Content.styled(f"kept {tree.commit_length}", PLAIN)]
    parts.append(Content.styled(f"{drafts} of {tree.budget} drafts", QUIET))
    if hidden:
        parts.append(Content.styled(f"z shows {hidden} more", QUIET))
    if snapshot.spine_hit_rate is not None:
        parts.append(Content.styled(f"spine hit {percent(snapshot.spine_hit_rate)}", QUIET))
    if snapshot.branch_gain is not None:
        parts.append(Content.styled(f"branch gain {snapshot.branch_gain:+.2f}", QUIET))
    if snapshot.lookup_share is not None:
        mark = view.glyphs.looked_up_kept
        parts.append(Content.styled(f"{mark} lookup {percent(snapshot.lookup_share)} of kept", QUIET))
    return row("", within(parts, width - LABEL_WIDTH, "   "))
