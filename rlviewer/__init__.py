"""The web side of rlviewer."""
