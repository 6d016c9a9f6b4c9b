#!/usr/bin/env bash
# The main job on an installed package, end to end, its outputs read back: train, stop, resume,
# finalize, verify, generate, export.   tests/e2e.sh PYTHON   (a Python with wafer's packages)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-$root/.venv/bin/python}
[[ $python == /* ]] || python=$PWD/$python
desk=$(mktemp -d)
trap 'kill %% 2>/dev/null || true; rm -rf "$desk"' EXIT
cd "$desk"
export WAFER_JOBS_DB=$desk/jobs.db
wafer() { "$python" -P -m wafer "$@"; }  # -P: the installed package, not this folder's
compare() { "$python" -P "$root/tests/helpers/e2e_checks.py" "$@"; }
fail() { echo "e2e: $1"; tail -n 40 "$desk"/*.log; exit 1; }

# Positions that Hugging Face's gpt2 has; a topology update, a checkpoint and log lines within reach.
sed 's/position_embedding_type: rotary/position_embedding_type: learned/; /rotary_dim/d
  s/freq: 100,/freq: 10,/; s/_steps: 300/_steps: 20/; s/log_steps: 50/log_steps: 5/' \
  "$root/models/configs/gpt_pystdlib.yaml" >params.yaml
run=(run --params params.yaml --mode train --model_dir run)

# 1. Stop a run after its first checkpoint; 2. the same command continues from its last step.
"$python" -P -m wafer "${run[@]}" --max_steps 800 >stop.log 2>&1 &
for _ in $(seq 1500); do
  [[ -d run/checkpoints/20 ]] && break
  kill -0 $! 2>/dev/null || fail "the run ended before its first checkpoint"
  sleep 0.2
done
kill -TERM $!
wait $! && fail "a run that was stopped says that it finished"
stopped=$(ls run/checkpoints | sort -n | tail -n 1)
last=$((stopped + 40))
wafer "${run[@]}" --max_steps "$last" --export hf >resume.log 2>&1 || fail "the run cannot go on"
grep -q "at step $stopped" resume.log || fail "the run did not continue from step $stopped"

# 3. Finalize; every array is the source's with 0 for NaN.
wafer finalize -i "run/checkpoints/$last" -o dense >finalize.log 2>&1 || fail "finalize"
wafer checkpoint verify run >verify.log 2>&1 || fail "the run's checkpoints are damaged"
wafer checkpoint verify dense >>verify.log 2>&1 || fail "the finalized checkpoint is damaged"
compare finalized "run/checkpoints/$last" dense

# 4. Both checkpoints write the same greedy text.
words=(--prompt "def read_" --max_new_tokens 24 --temperature 0)
wafer generate --checkpoint_path run "${words[@]}" >sparse.txt 2>generate.log || fail "generate"
wafer generate --checkpoint_path dense "${words[@]}" >dense.txt 2>>generate.log || fail "generate"
compare texts sparse.txt dense.txt

# 5. Both exports hold the checkpoint's weights; transformers reads them where it is installed.
to_hf=(--model gpt2 --src-fmt wafer --tgt-fmt hf --output-dir hf)
wafer convert convert "${to_hf[@]}" dense >convert.log 2>&1 || fail "convert"
compare exported dense hf
compare exported dense "run/hf/$last"
echo "e2e: stopped at $stopped, resumed to $last, finalized, generated, exported, in $SECONDS s"
