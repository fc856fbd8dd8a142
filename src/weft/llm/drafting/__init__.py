"""Drafting: guesses of the next tokens, which the model checks in one batch. Texts stay the same.

ngram.py         proposes what followed the same tokens earlier in the text
second_model.py  proposes what a smaller model would write
next_tokens.py   proposes what a layer expects that was trained for the model
own_cache.py     `OwnCache`: the cache of a model that drafts
gain.py          `Gain`: whether a draft pays, from times and acceptance measured as it runs
drafting.py      `Drafter`, the protocol: a new drafter is one file; `Drafting` asks drafters
                  for all texts of a step, and learns from the results
"""
