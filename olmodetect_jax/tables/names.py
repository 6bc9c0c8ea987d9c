"""What the paper calls things: its tables' words for our ids."""

from __future__ import annotations

PAPER_TREE = "olmo2"

SIZES = {"1b": "1B", "7b": "7B", "13b": "13B", "32b": "32B"}
STAGES = {"pretraining": "Pre", "midtraining": "Mid", "posttraining": "Post"}
DOMAINS = {
    "dclm": "DCLM-Baseline", "pes2o": "peS2o", "openwebmath": "OpenWebMath", "starcoder": "StarCoder",
    "gsm8k": "GSM8K", "stackexchange": "Stack Exchange", "sft": "SFT", "dpo": "DPO", "rlvr": "RLVR",
}  # fmt: skip
SHORT_DOMAINS = {
    "dclm": "DCLM", "pes2o": "peS2o", "openwebmath": "OWM", "starcoder": "SC", "stackexchange": "SE", "sft": "SFT",
    "dpo": "DPO",
}  # fmt: skip
SUBSETS = {
    "dclm": "DCLM-Baseline", "pes2o": "peS2o", "openwebmath": "OpenWebMath", "sc_python": "Python", "sc_java": "Java",
    "gsm8k": "GSM8K", "se_math": "Math Stack Exchange", "se_stackoverflow": "Stack Overflow", "sft_aya": "Aya",
    "sft_wildchat": "WildChat", "dpo": "UF-WildChat", "rlvr_cot-gsm8k": "CoT-GSM8K", "rlvr_cot-math": "CoT-MATH",
}  # fmt: skip
MODEL_AVG = "Model-Avg"

# Tables of one domain, and of the subsets of a domain with several, in the order of the paper's appendix.
DOMAIN_ORDER = ("dclm", "pes2o", "starcoder", "openwebmath", "gsm8k", "stackexchange", "sft", "dpo", "rlvr")
SUBSET_ORDER = ("starcoder", "stackexchange", "sft", "rlvr")
SUPERVISED_ORDER = ("dclm", "pes2o", "openwebmath", "starcoder", "gsm8k", "stackexchange", "sft", "dpo", "rlvr")
