"""Where things lie on the box (contracts.md section 8), as one value per scope. Paths are absolute, POSIX, strings."""

from __future__ import annotations

from dataclasses import dataclass

from console.box.target import Scope

IDENTIFIER = "ddtree-engine"  # SyslogIdentifier of the bundled engine, whatever its unit is called


@dataclass(frozen=True)
class Layout:
    """The folders of one installation. `share` holds releases, `config` the settings, `state` what is written later."""

    scope: Scope
    share: str
    config: str
    state: str
    cache: str
    """Downloads; outlives an uninstall."""
    units: str
    """Where the unit file goes; unused for the supervisor."""
    unit: str

    @property
    def releases(self) -> str:
        return f"{self.share}/releases"

    @property
    def current(self) -> str:
        """A symlink to the release in use, swapped by rename."""
        return f"{self.share}/current"

    @property
    def python(self) -> str:
        """The interpreter that the engine and the agents run under."""
        return f"{self.current}/venv/bin/python"

    def agent(self, name: str) -> str:
        """An agent program of the release in use: `supervise.py`, `apply.py`, `runner.py`."""
        return f"{self.current}/agent/{name}"

    @property
    def settings(self) -> str:
        return f"{self.config}/engine.toml"

    @property
    def generations(self) -> str:
        return f"{self.config}/generations"

    @property
    def runs(self) -> str:
        return f"{self.state}/runs"

    @property
    def unit_file(self) -> str:
        return f"{self.units}/{self.unit}"

    @property
    def supervised(self) -> str:
        """The supervisor's folder for this unit: service.json, status.json, the journal."""
        return f"{self.state}/supervised/{self.unit}"


def layout_for(scope: Scope, home: str, unit: str) -> Layout:
    """The layout of an installation in `scope` for a login whose home folder is `home`."""
    if scope == "system":
        return Layout(
            scope, "/opt/ddtree", "/etc/ddtree", "/var/lib/ddtree", "/var/cache/ddtree", "/etc/systemd/system", unit
        )
    return Layout(
        scope,
        share=f"{home}/.local/share/ddtree",
        config=f"{home}/.config/ddtree",
        state=f"{home}/.local/state/ddtree",
        cache=f"{home}/.cache/ddtree",
        units=f"{home}/.config/systemd/user",
        unit=unit,
    )
