#!/usr/bin/env bash
# A Debian 12 for ARM64 on this machine, by user-mode emulation (qemu-user).
#
#     machine.sh up FOLDER WHEEL      makes it in FOLDER, with hfx of WHEEL and what its tests need
#     machine.sh run FOLDER COMMAND   runs a command there; /tmp and the working directory are those of this machine
#
# It needs root, Debian's apt and a network, and takes ten minutes and 4 GB at first. Nothing stays mounted.
set -euo pipefail

readonly CANNOT=3
readonly MAGIC=':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
readonly MASK=':\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
readonly REGISTRY=/proc/sys/fs/binfmt_misc
# PyPI's later versions of torch for aarch64 bring CUDA, which takes gigabytes.
readonly TORCH=torch==2.10.0
HERE=$(cd "$(dirname "$0")" && pwd)

cannot() { echo "No ARM64 machine can be emulated here: $1."; exit $CANNOT; }

up() {
    local root=$1 wheel=$2
    [ "$(uname -m)" = x86_64 ] || cannot "this is not x86-64"
    [ "$(id -u)" = 0 ] || cannot "it needs root"
    command -v apt-get >/dev/null || cannot "it needs Debian's apt"
    command -v qemu-aarch64-static >/dev/null && command -v debootstrap >/dev/null ||
        { apt-get update -qq && apt-get install -y -qq qemu-user-static debootstrap; } >/dev/null
    mountpoint -q $REGISTRY || mount -t binfmt_misc none $REGISTRY || cannot "the kernel has no binfmt_misc"
    # With the flag F, the emulator is opened here, and also runs what is in another root folder.
    [ -e $REGISTRY/qemu-aarch64 ] || printf '%s' "$MAGIC$MASK:$(command -v qemu-aarch64-static):F" >$REGISTRY/register
    # What an interrupted debootstrap left is of no use.
    [ -e "$root/complete" ] || {
        rm -rf "$root"
        debootstrap --arch=arm64 --variant=minbase --include=python3,python3-venv,libpython3.11,ca-certificates bookworm "$root" >/dev/null
        touch "$root/complete"
    }
    cp "$HERE/cpuinfo" "$root/cpuinfo"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    [ -x "$root/opt/venv/bin/pip" ] || run "$root" python3 -m venv /opt/venv
    install_hfx "$root" "$wheel"
}

install_hfx() {
    local root=$1 wheel=$2 constraints=$root/opt/constraints.txt
    local pip=(/opt/venv/bin/pip --disable-pip-version-check install --quiet --no-compile --only-binary=:all:)
    mkdir -p "$root/opt/wheels"
    cp "$wheel" "$root/opt/wheels/"
    wheel=/opt/wheels/$(basename "$wheel")
    sed "s/^torch==.*/$TORCH/" "$HERE/../../constraints.txt" >"$constraints.new"
    if ! cmp -s "$constraints.new" "$constraints"; then
        run "$root" "${pip[@]}" --constraint /opt/constraints.txt.new "$wheel[embedded]" pytest pytest-timeout pytest-xdist hypothesis
        mv "$constraints.new" "$constraints"
    fi
    run "$root" "${pip[@]}" --no-deps --force-reinstall "$wheel"
}

enter() { exec unshare --mount --propagation private "$0" inside "$@"; }
run() { (enter "$@"); }

inside() {
    local root=$1 folder
    shift
    mount -t proc proc "$root/proc"
    mount --bind "$root/cpuinfo" "$root/proc/cpuinfo" # the emulator shows this machine's, of another processor
    mount --rbind /dev "$root/dev"
    for folder in /tmp "$PWD" /etc/ssl; do
        mkdir -p "$root$folder"
        mount --rbind "$folder" "$root$folder"
    done
    exec chroot "$root" /usr/bin/env -C "$PWD" PATH=/opt/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"
}

case $1 in
run) shift && enter "$@" ;; # the command has the process of this script
*) "$@" ;;
esac
