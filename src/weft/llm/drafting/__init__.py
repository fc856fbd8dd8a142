"""Drafting: guesses of the next tokens, which the model checks in one batch. Texts stay the same.

drafter.py   `Drafter`, the protocol; a new drafter is one file
ngram.py     proposes what followed the same tokens earlier in the text
gain.py      `Gain`: whether a draft pays, from times and acceptance measured as it runs
options.py   `DraftOptions`, what a caller chooses
drafting.py  `Drafting`: asks drafters for all texts of a step, and learns from the results
"""
