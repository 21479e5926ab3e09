#!/usr/bin/env bash
# One command for a machine with a GPU: records, measures what recording costs, checks the allocator's rules, packs the results.
#
#   benchmarks/on_gpu.sh --out results [--wheels FOLDER] [--minutes 10] [--only STAGE,STAGE...]
#   benchmarks/on_gpu.sh --out results --dry-run      # every stage on a virtual GPU, small: no GPU needed
#
# Needs python3 (3.11 or later; PYTHON=... names another) with torch 2.10 or later, numpy, msgpack, orjson and typer, and no network:
# what is missing can lie as wheels in the folder that --wheels names. Nothing is installed; it is unpacked for the time of the run.
# What it does in detail is in on_gpu.py, beside this file.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
words=()
while (($#)); do
  case $1 in
    --wheels)
      [[ $# -ge 2 ]] || { echo "on_gpu: --wheels needs a folder" >&2; exit 2; }
      wheels=$2
      shift 2
      ;;
    *)
      words+=("$1")
      shift
      ;;
  esac
done

if [[ -n ${wheels:-} ]]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  for wheel in "$wheels"/*.whl; do
    [[ -e $wheel ]] || { echo "on_gpu: there are no wheels in $wheels" >&2; exit 2; }
    "$python" -m zipfile -e "$wheel" "$site" # a wheel is a zip file of what goes on the path
  done
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi

"$python" "$here/on_gpu.py" "${words[@]+"${words[@]}"}"
