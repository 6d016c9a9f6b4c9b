"""Tokens of llama.cpp, for peers.py: run by a Python that has ``xllamacpp``.

    python tests/bench/llama_tokens.py MODEL.gguf THREADS

For every line of the input, keys of a request such as {"n_predict": 8}, it continues 32 tokens
greedily and writes the answer as a line of JSON.
"""

import json
import os
import sys

import xllamacpp

path, threads = sys.argv[1], int(sys.argv[2])
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # its log
params = xllamacpp.CommonParams()
params.model.path = path
params.n_ctx, params.n_parallel = 64, 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
fixed = {"prompt": [1] * 32, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
for line in sys.stdin:
    answer = server.handle_completions(fixed | json.loads(line))
    print(json.dumps(answer), file=answers, flush=True)
