"""Prompts to train on: the same draw for the same seed, every kind in turn, nothing of the held-out subjects."""

import ast

from engine.training import subjects
from engine.training.prompts import KINDS, draw_prompts
from engine.training.variety import Material, draw_varied, library_functions

WORDS = [f"word{letter}" for letter in "abcdefghijklmnop"]
PASSAGES = ["The river rose in the night. By morning the mill stood in water, and nobody could cross.\n" * 6]
MATERIAL = Material(PASSAGES, WORDS, library_functions())


def test_varied_prompts_come_in_turn_and_the_same_again() -> None:
    drawn = draw_varied(MATERIAL, 70, seed=3)
    assert [prompt.kind for prompt in drawn] == list(KINDS) * 10
    assert drawn == draw_varied(MATERIAL, 70, seed=3)
    assert drawn != draw_varied(MATERIAL, 70, seed=4)


def test_varied_prompts_hardly_ever_repeat_where_templates_do() -> None:
    many = [prompt.text for prompt in draw_varied(MATERIAL, 1400, seed=1)]
    assert len(set(many)) > 1100


def test_passages_are_asked_about_whole_sentence_by_whole_sentence() -> None:
    asked = [
        prompt.text for prompt in draw_varied(MATERIAL, 700, seed=5) if prompt.kind == "copy" and "river" in prompt.text
    ]
    assert len(asked) > 20
    assert all("\n\nThe river" in text or "\n\nBy morning" in text for text in asked)


def test_the_librarys_functions_are_whole_and_of_a_readable_length() -> None:
    functions = library_functions()
    assert len(functions) > 300
    for source in functions[:50]:
        (node,) = ast.parse(source).body
        assert isinstance(node, ast.FunctionDef)
        assert 4 <= source.count("\n") + 1 <= 30


def test_held_out_prompts_are_of_subjects_no_training_prompt_has() -> None:
    trained = " ".join(prompt.text for prompt in draw_prompts("train", 700, 0))
    assert not any(topic in trained for topic in subjects.HELD_OUT_TOPICS)
    held_out = draw_prompts("held_out", 84, 0)
    assert sum(topic in prompt.text for prompt in held_out for topic in subjects.HELD_OUT_TOPICS) > 20
