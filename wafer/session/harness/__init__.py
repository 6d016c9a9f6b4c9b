"""Tasks of the EleutherAI harness (``lm_eval``) on a model of ours; torch is not imported."""
