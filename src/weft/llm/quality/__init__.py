"""How good a model is: against another, and at tasks; and which weights count. By llama.cpp's
methods and file formats.

divergence.py          KL divergence and what goes with it, from rows of two models
logits_file.py         files of the probabilities of a base model, in 16 bits
kl.py                  writes such files, and compares a model with one or with a second model
tasks.py               files of tasks with several answers
choices.py             which answers a model chooses
input_squares.py       sums of squares of what products read, while a model computes
imatrix.py             importance matrices: measured, gone on with, merged; their figures
tensor_log.py          reads logs of llama-eval-callback
beside.py              which tensor of a run is the first that differs from a log
layers.py              the same beside a model of transformers

Perplexity, also of windows that overlap, is in `compute/perplexity.py`.
"""

from typing import TYPE_CHECKING

from weft.lazy import imported_when_used

if TYPE_CHECKING:
    from weft.llm.compute.perplexity import score_strided
    from weft.llm.quality.beside import compare_tensors
    from weft.llm.quality.choices import Score, TaskResult, score_blanks, score_choices
    from weft.llm.quality.divergence import (
        Estimate,
        KLDivergence,
        KLStatistics,
        Spread,
        kl_statistics,
    )
    from weft.llm.quality.imatrix import (
        ImatrixOptions,
        ImatrixProgress,
        ImatrixRun,
        TensorStatistics,
        imatrix_statistics,
    )
    from weft.llm.quality.kl import compare_with_file, compare_with_model, save_logits
    from weft.llm.quality.logits_file import LogitsFile
    from weft.llm.quality.tensor_log import LoggedTensor, TensorLog, read_tensor_log
    from weft.llm.quality.tensor_pairs import TensorComparison, TensorPair

__all__ = ["Estimate", "ImatrixOptions", "ImatrixProgress", "ImatrixRun", "KLDivergence",
           "KLStatistics", "LoggedTensor", "LogitsFile", "Score", "Spread", "TaskResult",
           "TensorComparison", "TensorLog", "TensorPair", "TensorStatistics", "compare_tensors",
           "compare_with_file", "compare_with_model", "imatrix_statistics", "kl_statistics",
           "read_tensor_log", "save_logits", "score_blanks", "score_choices",
           "score_strided"]  # fmt: skip

_HOMES = {
    "weft.llm.quality.choices": ("Score", "TaskResult", "score_blanks", "score_choices"),
    "weft.llm.quality.beside": ("compare_tensors",),
    "weft.llm.quality.tensor_pairs": ("TensorComparison", "TensorPair"),
    "weft.llm.quality.divergence": (
        "Estimate", "KLDivergence", "KLStatistics", "Spread", "kl_statistics",
    ),
    "weft.llm.quality.imatrix": (
        "ImatrixOptions", "ImatrixProgress", "ImatrixRun", "TensorStatistics", "imatrix_statistics",
    ),
    "weft.llm.quality.kl": ("compare_with_file", "compare_with_model", "save_logits"),
    "weft.llm.quality.logits_file": ("LogitsFile",),
    "weft.llm.quality.tensor_log": ("LoggedTensor", "TensorLog", "read_tensor_log"),
    "weft.llm.compute.perplexity": ("score_strided",),
}  # fmt: skip
__getattr__, __dir__ = imported_when_used(__name__, _HOMES)
