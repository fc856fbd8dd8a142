"""What a smaller model costs, and the best one for a machine.

held.py        a text under one model, against which others are held
compared.py    models side by side: size, perplexity, divergence, speed, memory
written.py     a text that a model writes itself, where there is no other
choices.py     groups of tensors that get one type, and the types that each may get
damage.py      the squared error of a tensor in a type
measured.py    the divergence that each group in each type causes
caches.py      the same for the types of cached keys and values
kept.py        what was measured, in the user's cache folder
knapsack.py    one choice for each group: least cost within limits, exactly
sizes.py       bytes and seconds of each choice, from plans
budget.py      puts these together: the best types for a budget
plan_file.py   the choice as a file, to read and to use again
fit.py         all of it, for `weft quantize --fit`
"""
