"""Texts that differ from a text in a few words, for the Neighborhood attack: where they differ, and who fills in."""
