#!/usr/bin/env bash
# NVIDIA's onnxruntime backend in C++ for test_onnxruntime_backend.py, on CPU and with the ONNX Runtime of this Python:
#     build_onnxruntime_backend.sh SOURCES HEADERS FOLDER
# SOURCES holds checkouts of onnxruntime_backend, backend, core and common of github.com/triton-inference-server, all of
# the branch r24.10, which the embedded server is of. HEADERS has onnxruntime_c_api.h, of any release up to the installed
# one. Needs g++ and rapidjson (Debian: rapidjson-dev); takes half a minute. FOLDER is made.
set -euo pipefail
sources=$(realpath "$1") headers=$(realpath "$2")
mkdir -p "$3" && cd "$3"
objects=$(mktemp -d) && trap 'rm -r "$objects"' EXIT
includes=(-I"$headers" -I"$sources"/onnxruntime_backend/src)
includes+=(-I"$sources"/backend/include -I"$sources"/backend/src -I"$sources"/common/include -I"$sources"/core/include)
for part in onnxruntime_backend/src/{onnxruntime,onnxruntime_loader,onnxruntime_utils} \
    backend/src/backend_{common,input_collector,memory,model,model_instance,output_responder} \
    common/src/{async_work_queue,error,thread_pool}; do
    g++ -std=c++17 -O2 -fPIC -DTRITON_ENABLE_STATS=1 "${includes[@]}" -c "$sources/$part.cc" -o "$objects/${part##*/}.o"
done
capi=$(python -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("onnxruntime").origin).parent / "capi")')
cp "$capi"/libonnxruntime.so.1.* libonnxruntime.so.1
g++ -shared -o libtriton_onnxruntime.so "$objects"/*.o ./libonnxruntime.so.1 -Wl,-rpath,'$ORIGIN' \
    -Wl,--version-script,"$sources"/onnxruntime_backend/src/libtriton_onnxruntime.ldscript
