"""The cost of a smaller model, and the best one for a machine.

baseline.py      one model's scores on a text, with which others are compared; texts of its own
compared.py      models side by side: size, perplexity, divergence, speed, memory
choices.py       groups of tensors that get one type, and the types that each may get
measured.py      the divergence that each group in each type causes, and squared errors;
                 the same for the types of cached keys and values; all of it is kept in the
                 user's cache folder
knapsack.py      one choice for each group: least cost within limits, exactly
sizes.py         bytes and seconds of each choice, from plans
budget.py        puts these together: the best types for a budget
plan_file.py     the choice as a file, to read and to use again
fit.py           all of it, for `weft quantize --fit`
"""
