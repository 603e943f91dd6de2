#!/bin/sh
# Runs unmodified NVML clients, nvidia-ml-py and (where there is a Go toolchain) go-nvml, on every preset and board.
# Usage: run.sh [LATHE]        LATHE: the lathe program; without it, the one in target/release or target/debug.
# Whatever it needs besides goes into target/clients.
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../../target}
work=$target/clients
if [ $# -gt 0 ]; then
    lathe=$1
elif [ -x "$target/release/lathe" ]; then
    lathe=$target/release/lathe
else
    lathe=$target/debug/lathe
fi
if [ ! -x "$lathe" ]; then
    echo "$lathe is not there: build it with cargo build, or name it" >&2
    exit 2
fi

mkdir -p "$work"
work=$(CDPATH= cd -- "$work" && pwd)
if [ ! -x "$work/venv/bin/python" ]; then
    python3 -m venv "$work/venv"
fi
"$work/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
go_client=
if command -v go > /dev/null; then
    go_client=$work/walk-go
    # The header marks many functions as deprecated, and cgo compiles a wrapper for each.
    (cd "$here/go" && CGO_CFLAGS="-O2 -Wno-deprecated-declarations" go build -o "$go_client" .)
fi

nodes=$(mktemp -d)
trap 'rm -rf "$nodes"' EXIT
failed=

# walk NAME FLAG VALUE...: makes a node and runs every client on it, each on a fresh one.
walk() {
    name=$1
    shift
    for client in python go; do
        root=$nodes/$name-$client
        case $client in
            python) command="$work/venv/bin/python $here/walk.py $root" ;;
            go) [ -n "$go_client" ] || continue ; command=$go_client ;;
        esac
        "$lathe" sim create "$@" --root "$root" > /dev/null
        printf '%-20s %-7s' "$name" "$client"
        LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu PYTHONDONTWRITEBYTECODE=1 timeout 300 $command || failed="$failed $name/$client"
        rm -rf "$root"
    done
}

for preset in dgx-a100 dgx-h100 hgx-h200 dgx-b200 gb200-tray a30x4 mixed dgx-station-a100; do
    walk "$preset" --preset "$preset"
done
for board in a100-pcie-40gb a100-sxm4-80gb a100-pcie-80gb h100-pcie-80gb h100-nvl-94gb gh200-96gb gh200-144gb \
    h200-nvl-141gb b300-269gb gb300-278gb rtx-pro-6000-96gb l40s-48gb; do
    walk "$board" --board "$board" --gpus 1
done

if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
