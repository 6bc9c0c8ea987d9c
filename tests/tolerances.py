"""Every tolerance of the suite, with its reason. Never widened to make a test pass."""

# Tiny OLMo 2 models against transformers in float32: as their golden files state.
LOGITS = 5e-5
TOKEN_LOGPROBS = 3e-5

# The same text in another batch, padding or mesh, float32, a token (design, section 5).
LAYOUT = 1e-5

# The same with bfloat16 weights and activations: a value may round to the neighbouring one of eight bits.
BFLOAT16_LAYOUT = 0.05

# likelihood_logits.json: float32 statistics from given logits.
STATISTICS_LOG_PROB = 2e-5
STATISTICS_MEAN = 2e-5
STATISTICS_VARIANCE_ABS = 2e-4
STATISTICS_VARIANCE_REL = 1e-4
SUM_LL = 5e-4
ZLIB_REL = 2e-5
MIN_K = 2e-5
MIN_K_PLUS_PLUS = 2e-3
MIN_K_PLUS_PLUS_NEAR_ONE_HOT_REL = 1e-3

# likelihood_bf16.json: one bfloat16 step; the variance is a difference of two bfloat16 numbers.
BF16_REL = 1 / 128
BF16_VARIANCE_ABS = 0.01  # times max(1, mean²)
BF16_MIN_K_PLUS_PLUS_REL = 0.03
BF16_EXACT_SHARE = 0.95

# likelihood_tokenstats.json, likelihood_text.json, likelihood_dcpdd.json: float64 arithmetic on given numbers.
TOKENSTATS_REL = 1e-6
TOKENSTATS_ZERO_VARIANCE_REL = 1e-3
TEXT_REL, TEXT_ABS = 1e-12, 1e-11
DCPDD_REL = 1e-9

# likelihood_tiny_olmo2.json: a forward pass from weights rounded to four digits, against transformers.
TINY_LOG_PROB = 2e-4
TINY_VARIANCE = 2e-3
TINY_MEAN_LL = 1e-4
TINY_MIN_K_PLUS_PLUS = 2e-3

# The embedded model against transformers, float32, up to 1,024 tokens: two summation orders over four layers.
SAMPLE_STATISTICS = 3e-5
# bfloat16 weights and activations, float32 logits: eight bits a value, over four layers.
SAMPLE_BFLOAT16_MAX = 0.2
SAMPLE_BFLOAT16_MEAN = 0.02
# Logits of size up to 16 rounded to bfloat16 (steps of 1/16), twice.
SAMPLE_RELEASED_MAX = 0.125
