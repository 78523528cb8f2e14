"""An operator's own playbooks lie in the config folder, appear beside the built-in ones, and are judged anew with every look."""

from __future__ import annotations

from pathlib import Path

import pytest
from sound_script import SOUND, changed

from console.experiments.playbook import built_in_folder, catalogue, user_folder
from console.verbs.playbooks import find_playbook


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's folder, with one sound script in it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = user_folder()
    assert folder == tmp_path / "ddtree" / "playbooks"
    folder.mkdir(parents=True)
    (folder / "sound.py").write_text(SOUND)
    return folder


def test_own_scripts_stand_behind_the_built_in_ones(own: Path) -> None:
    found = catalogue()
    assert found[-1].id == "sound" and found[-1].path == own / "sound.py" and found[-1].valid
    assert {playbook.path.parent for playbook in found[:-1]} == {built_in_folder()}
    assert find_playbook("sound").data == SOUND.encode()


def test_an_edit_is_seen_and_judged_at_once(own: Path) -> None:
    (own / "sound.py").write_text(SOUND + 'print(f"{rate[\\"tok\\"]}")\n')
    broken = catalogue()[-1]
    assert not broken.valid and broken.faults[0].line == SOUND.count("\n") + 1
    (own / "sound.py").write_text(SOUND)
    assert catalogue()[-1].valid
    (own / "sound.py").unlink()
    assert "sound" not in {playbook.id for playbook in catalogue()}


def test_a_key_or_an_id_that_is_taken_stays_with_its_first_owner(own: Path) -> None:
    (own / "sound.py").write_text(changed('# key = "s"', '# key = "q"'))
    (own / "quick_probe.py").write_text(SOUND.replace('"sound"', '"quick_probe"'))
    found = {(playbook.id, playbook.path.parent): playbook for playbook in catalogue()}
    twin, clash = found["quick_probe", own], found["sound", own]
    assert not twin.valid and "is taken by" in twin.faults[-1].message
    assert clash.valid and clash.key == "" and "belongs to quick_probe" in clash.warnings[-1].message
    assert found["quick_probe", built_in_folder()].key == "q"
    assert find_playbook("quick_probe").path.parent == built_in_folder()
