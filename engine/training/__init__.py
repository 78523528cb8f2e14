"""Training a DFlash drafter: prompts, the target's own responses, blocks at random anchors, the loop and the figures."""
