"""The console's full-screen face, on Textual."""

import os

# Ten pictures a second at most, for terminals at the end of slow links. Textual reads this once, when it is imported,
# and has no other way to be told.
os.environ.setdefault("TEXTUAL_FPS", "10")
