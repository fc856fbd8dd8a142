"""Drafting: guesses of the next tokens, which the model checks in one batch. Texts stay the same.

ngram.py         proposes what followed the same tokens earlier in the text
next_tokens.py   proposes what a smaller model would write, or what a layer of the model
                 expects that was trained for it
gain.py          `Gain`: whether a draft pays, from times and acceptance measured as it runs
drafting.py      `Drafter`, the protocol: a new drafter is one file; `Drafting` asks drafters
                  for all texts of a step, and learns from the results
"""
