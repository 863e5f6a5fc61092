"""Builds for real boards with open tools. Empty so far: the package exists so that its name and place are settled."""
