#!/bin/bash
# As NVIDIA's: prints and sources the parts, then runs the arguments.
shopt -s nullglob extglob
for part in /opt/nvidia/entrypoint.d/*@(.txt|.sh); do
    case $part in *.txt) cat "$part" ;; *.sh) source "$part" ;; esac
done
echo
if [[ $# -eq 0 ]]; then exec /bin/bash; else exec "$@"; fi
