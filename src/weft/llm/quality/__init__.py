"""How good a model is: against another, and at tasks. By llama.cpp's methods and file formats.

log_probs.py    logarithms of probabilities, and the 16 bits that files keep of them
divergence.py   KL divergence and what goes with it, from rows of two models
logits_file.py  files of the probabilities of a base model
kl.py           writes such files, and compares a model with one or with a second model
"""
