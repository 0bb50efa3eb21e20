#!/bin/sh
# Are the system packages there that cannot come with pip?
#
#   sh scripts/system_packages.sh build [test]            say what is missing; exit 1 if anything
#   sh scripts/system_packages.sh --list build [test]     print only Debian's package names
#
# build: what the environment is made with. test: other programs that open our files, too.
# PYTHON names the interpreter to ask (python3).
set -eu

python=${PYTHON:-python3}
list=no
if [ "${1:-}" = --list ]; then
    list=yes
    shift
fi

missing=
report=
need() { # need PACKAGE WHAT
    missing="$missing $1"
    report="$report
  $2"
}
has() { command -v "$1" >/dev/null 2>&1; }
compiles() { # compiles FLAGS HEADER...: does the C preprocessor find the headers?
    flags=$1
    shift
    for header in "$@"; do echo "#include <$header>"; done | cc -E $flags -x c - >/dev/null 2>&1
}

need_for_build() {
    if ! has "$python"; then
        need python3 "Python 3.11 or newer ($python is not there)"
        need python3-venv "Python's venv module"
        need python3-dev "Python's C headers"
    elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "shardkit needs Python 3.11 or newer; $("$python" --version) is older." >&2
        echo "Install a newer one and name it: make PYTHON=python3.12" >&2
        exit 1
    else
        "$python" -c 'import venv, ensurepip' 2>/dev/null || need python3-venv "Python's venv module"
        include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
        [ -e "$include/Python.h" ] || need python3-dev "Python's C headers"
    fi
    if ! has cc; then
        need "gcc libc6-dev" "a C compiler (pillow-simd comes as source)"
        [ -e /usr/include/jpeglib.h ] || need libjpeg-dev "libjpeg's headers"
        [ -e /usr/include/zlib.h ] || need zlib1g-dev "zlib's headers"
        return
    fi
    compiles "" stdio.h || need libc6-dev "the C library's headers"
    compiles "" stdio.h jpeglib.h || need libjpeg-dev "libjpeg's headers"
    compiles "" zlib.h || need zlib1g-dev "zlib's headers"
}

need_for_test() {
    has mdb_stat || need lmdb-utils "mdb_stat, which the tests open our LMDB files with"
    has h5dump || need hdf5-tools "h5dump, which the tests open our HDF5 files with"
    has chromium || need chromium "chromium, which the tests look at our pages with"
}

for group in "$@"; do
    case $group in
    build) need_for_build ;;
    test) need_for_test ;;
    *)
        echo "usage: system_packages.sh [--list] build|test ..." >&2
        exit 2
        ;;
    esac
done

if [ $list = yes ]; then
    echo $missing
elif [ -n "$missing" ]; then
    {
        echo "Some system packages are missing:$report"
        echo
        echo "On Debian or Ubuntu, install them with"
        echo "  apt-get install -y$missing"
        echo "(as root; after apt-get update), then run make again."
    } >&2
    exit 1
fi
