#!/bin/bash
# A docker engine for the tests, where a machine of Debian 12 has none: `engine.sh up`, `engine.sh down`.
#
# engine 26, BuildKit and compose of Debian 13 are only unpacked, containerd and runc are Debian 12's; nothing is upgraded.
# Runs as root, without systemd; the kernel has to have overlayfs, bridges, NAT, seccomp and cgroups. Data stay in
# /var/lib/docker. Ends with 3 where no engine can be had, and says why.
set -euo pipefail
STATE=/run/hfx-docker
TOOLS=/usr/local/libexec/docker26

answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
refuse() { echo "no docker engine: $1"; exit 3; }

if [ "${1:-up}" = down ]; then
    [ ! -f "$STATE/docker.pid" ] || kill "$(cat "$STATE/docker.pid")"
    exit
fi
answers && exit
[ "$(id -u)" = 0 ] || refuse "this is not root, and none answers"
grep -qs 'VERSION_ID="12"' /etc/os-release || refuse "none answers, and only Debian 12 is known how to start one on"

if [ ! -x $TOOLS/dockerd ]; then
    WORK=$(mktemp -d)
    trap 'rm -rf "$WORK"' EXIT
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # no service is started by the packages
    apt() { apt-get install -y --no-install-recommends containerd runc tini iptables >"$WORK/apt.log" 2>&1; }
    apt || { apt-get update >/dev/null && apt; } || refuse "$(tail -1 "$WORK/apt.log")"
    mkdir -p "$WORK"/{etc,lists/partial,cache/archives/partial,x}
    sed 's/bookworm/trixie/g' /etc/apt/sources.list.d/debian.sources >"$WORK/etc/trixie.sources"
    : >"$WORK/status"
    cat >"$WORK/apt.conf" <<CONF
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$WORK/etc";
Dir::State::lists "$WORK/lists";
Dir::State::status "$WORK/status";
Dir::Cache "$WORK/cache";
APT::Sandbox::User "root";
CONF
    cd "$WORK/cache"
    export APT_CONFIG=$WORK/apt.conf
    apt-get update >/dev/null && apt-get download docker.io docker-cli docker-buildx docker-compose >/dev/null ||
        refuse "the packages of Debian 13 can't be had"
    unset APT_CONFIG
    for package in ./*.deb; do dpkg-deb -x "$package" "$WORK/x"; done
    install -D -t /usr/libexec/docker/cli-plugins "$WORK"/x/usr/libexec/docker/cli-plugins/*
    command -v docker >/dev/null || install "$WORK/x/usr/bin/docker" /usr/local/bin/docker
    install -D -t $TOOLS "$WORK"/x/usr/sbin/{docker-proxy,dockerd}
fi

mkdir -p $STATE
PATH=$TOOLS:$PATH nohup dockerd --exec-root $STATE/exec --pidfile $STATE/docker.pid --init-path /usr/bin/tini-static \
    --userland-proxy-path $TOOLS/docker-proxy >$STATE/dockerd.log 2>&1 </dev/null &
for _ in $(seq 60); do answers && exit; sleep 0.5; done
refuse "$(tail -1 $STATE/dockerd.log)"
