"""What `python -m engine bench` asks the model: one short prompt a text kind, and a passage to fill a context with."""

from __future__ import annotations

from collections.abc import Mapping

PROMPTS: Mapping[str, str] = {
    "chat": "What should I look at first when I buy a used bicycle?",
    "prose": "Write the opening paragraph of a story about a lighthouse keeper who finds a letter in the sand.",
    "code": "Write a Python function that returns the n-th Fibonacci number, with a loop and no recursion.",
    "json": 'Describe three fruits as a JSON list of objects with the keys "name", "colour" and "price".',
    "list": "List the months of the year, one a line, each with its number of days.",
    "copy": "Repeat this line five times: The quick brown fox jumps over the lazy dog.",
}

FILLER = """The harbour lies on the north side of the bay, behind a long mole of grey stone. In the morning the boats come in \
with the tide, and the market opens before the sun is over the hills. There is a school beside the church, a bakery, two \
workshops where engines are mended, and an office that lends out nets. In winter the road over the pass is closed for some \
weeks, and what the village needs comes by sea. The older people remember a time without electric light, when the lamp of \
the lighthouse was filled by hand every evening and its keeper wrote down each ship that passed. """
