#!/usr/bin/env bash
# Everything that only a GPU can tell: builds, tests, speed, in stages of their own time. Nothing is installed and no
# network is used; results are JSON files in $OUT, or in build/gpu_check.
#
#   benchmarks/gpu_check.sh                  all stages, in order of value, 8 minutes at most
#   benchmarks/gpu_check.sh --only speed     one stage
#   benchmarks/gpu_check.sh --rehearse       all stages without a GPU, in Triton's interpreter, with tiny sizes
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export OUT=${OUT:-$root/build/gpu_check}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)

# The tree laid out as it is installed: kernels, schemas and policies inside policyquant.
laid_out=$(mktemp -d)
trap 'rm -rf "$laid_out"' EXIT
cp -r "$root/policyquant" "$root/benchmarks" "$root/proof" "$laid_out"
cp -r "$root/kernels" "$root/schemas" "$root/policies" "$laid_out/policyquant"
mkdir "$laid_out/tests"
cp "$root"/tests/*.py "$laid_out/tests"
cp -r "$root/tests/kernels" "$laid_out/tests"
cd "$laid_out"
export PYTHONPATH=$laid_out
"${PYTHON:-python3}" -m benchmarks.gpu "$@"
