# SPDX-License-Identifier: Apache-2.0
"""FMMformer: softmax inside a band plus kernelised far fields, as one linear-time operator.

>>> from fmmformer import fmm_attention
>>> out = fmm_attention(q, k, v, bandwidth=5, feature_maps=("elu", "elu_flip"))   # [B, N, H, D]
"""

from fmmformer import _library

_library.load()

from fmmformer.fast_weight import (  # noqa: E402  the functions need the library
    fast_weight_attention,
    fast_weight_attention_prefill,
    fast_weight_attention_reference,
    fast_weight_attention_step,
)
from fmmformer.functional import (  # noqa: E402
    fmm_attention,
    fmm_attention_prefill,
    fmm_attention_reference,
    fmm_attention_step,
    full_attention,
)
from fmmformer.layer import FMMAttention  # noqa: E402
from fmmformer.state import AttentionState, FastWeightState, FmmState  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "AttentionState",
    "FMMAttention",
    "FastWeightState",
    "FmmState",
    "__version__",
    "fast_weight_attention",
    "fast_weight_attention_prefill",
    "fast_weight_attention_reference",
    "fast_weight_attention_step",
    "fmm_attention",
    "fmm_attention_prefill",
    "fmm_attention_reference",
    "fmm_attention_step",
    "full_attention",
]
