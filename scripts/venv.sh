#!/bin/sh
# venv.sh STAMP EXTRAS: makes .venv if there is none, installs Rollbook with these extras into it, and
# then writes the file STAMP. Run by make; PYTHON names the interpreter.
#
# Debian ships python3 without ensurepip, so that `python3 -m venv` fails there until python3-venv
# is installed. pip's wheel, fetched from Debian into a scratch folder, does as well: it needs no
# rights and leaves the system as it was. Installing the package is the second choice, also because
# it brings ca-certificates along, which rewrites the certificate bundle and so drops authorities
# that were added to the bundle by hand.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv
stamp=$1 # holds the path of the tree: the scripts in a venv break when the tree moves
extras=$2
scratch=$(mktemp -d)
export TMPDIR="$scratch" # so that nothing pip leaves when it is interrupted stays behind

say() { echo "venv: $*" >&2; }

die() {
    say "$*"
    exit 1
}

stamps() { find "$venv" -maxdepth 1 -name '.ready*' 2>/dev/null; }

# A .venv without a stamp does not outlive this script. (After kill -9 the next run rebuilds it.)
finish() {
    status=$?
    trap - EXIT
    rm -rf "$scratch"
    [ -n "$(stamps)" ] || rm -rf "$venv"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' HUP INT TERM

usable() {
    [ -n "$(stamps)" ] && ! stamps | xargs cat | grep -vqxF "$(pwd -P)" &&
        "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

# apt fetches for anyone, as long as its lists and its cache lie where they may write. (Root's apt
# would switch to a user that may not write in root's scratch folder.)
private_apt() {
    apt-get -qq -o "Dir::State=$scratch/state" -o "Dir::Cache=$scratch/cache" \
        -o Dir::State::status=/var/lib/dpkg/status -o APT::Sandbox::User=root "$@" >&2
}

venv_with_wheel() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    say "$python has no ensurepip; fetching pip's wheel from the package python3-pip-whl"
    mkdir -p "$scratch/state/lists/partial" "$scratch/cache/archives/partial" &&
        private_apt update &&
        (cd "$scratch" && private_apt download python3-pip-whl) &&
        dpkg-deb -x "$scratch"/python3-pip-whl_*.deb "$scratch" &&
        "$python" -m venv --without-pip "$venv" &&
        for wheel in "$scratch"/usr/share/python-wheels/pip-*.whl; do
            # A wheel is a zip file, and Python runs programs out of zip files.
            "$venv/bin/python" "$wheel/pip" install --quiet --no-index "$wheel"
        done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

venv_with_package() {
    command -v apt-get >/dev/null && as_root true 2>/dev/null || return 1
    say "that did not work; installing the package python3-venv"
    as_root apt-get -qq update >&2 &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq install -y --no-install-recommends python3-venv >/dev/null &&
        "$python" -m venv --clear "$venv"
}

make_venv() {
    rm -rf "$venv"
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv "$venv"
    else
        venv_with_wheel || venv_with_package
    fi
}

install() {
    say "installing rollbook[$extras] (this can take some minutes)"
    # Bytecode is written when a module is first imported: compiling every file takes longer than pip.
    "$venv/bin/python" -m pip install -qq --no-compile --disable-pip-version-check \
        --root-user-action=ignore -e ".[$extras]"
}

command -v "$python" >/dev/null ||
    die "there is no $python; install Python 3.11 or newer, or name one: make PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "Rollbook needs Python 3.11 or newer, but this is $("$python" --version 2>&1)"

cannot_install="pip could not install what pyproject.toml asks for; it says why above"
if usable; then
    # pip undoes its work when it fails, so an update that fails costs nobody their .venv: the old
    # stamps come back, and being older than pyproject.toml they make the next run try again.
    mkdir -p "$venv/.updating"
    stamps | xargs -I{} mv {} "$venv/.updating"
    installed=yes
    install || installed=no
    find "$venv/.updating" -name '.ready*' -exec mv {} "$venv" \;
    rmdir "$venv/.updating"
    [ $installed = yes ] || die "$cannot_install"
else
    make_venv ||
        die "cannot make $venv; install python3-venv, or name a Python 3.11+ that has ensurepip"
    install || die "$cannot_install"
fi
pwd -P >"$stamp"
