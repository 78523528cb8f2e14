"""What holds for every test."""

from __future__ import annotations

import hypothesis

# Examples differ in cost with the machine's load, and no test here is a test of time.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
