"""How good a model is: against another, and at tasks; and which weights count. By llama.cpp's
methods and file formats.

log_probs.py           logarithms of probabilities, and the 16 bits that files keep of them
divergence.py          KL divergence and what goes with it, from rows of two models
logits_file.py         files of the probabilities of a base model
kl.py                  writes such files, and compares a model with one or with a second model
strided.py             perplexity of windows that overlap
tasks.py               files of tasks with several answers
choices.py             which answers a model chooses
input_squares.py       sums of squares of what products read, while a model computes
imatrix.py             importance matrices: measured, gone on with, merged
imatrix_statistics.py  figures of an importance matrix
"""
