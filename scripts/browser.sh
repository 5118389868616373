#!/bin/sh
# browser.sh: installs Chromium for the tests of the portal, if it is missing and this user may.
# Without it those tests are skipped, and their message says the one line to run.
set -eu

for each in chromium chromium-browser google-chrome; do
    command -v "$each" >/dev/null && exit 0
done
command -v apt-get >/dev/null || exit 0

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

as_root true 2>/dev/null || exit 0
echo "browser: installing the package chromium (this can take some minutes)" >&2
as_root apt-get -qq update >&2 &&
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends chromium >/dev/null ||
    echo "browser: that did not work; the tests in a browser are skipped" >&2
