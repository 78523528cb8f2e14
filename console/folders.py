"""Where a user's files lie: the XDG base directory rules."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

APPLICATION = "ddtree"


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`$HOME`, or the one in the user database where that is unset or not absolute."""
    home = environ.get("HOME", "")
    return Path(home if Path(home).is_absolute() else pwd.getpwuid(os.getuid()).pw_dir)


def user_folder(variable: str, usual: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Our folder below `$variable`, or below `usual` in the home folder.

    A value that is not an absolute path is passed over, as the rules say: else a folder would be made wherever one stands.
    """
    named = environ.get(variable, "")
    return (Path(named) if Path(named).is_absolute() else home_folder(environ) / usual) / APPLICATION
