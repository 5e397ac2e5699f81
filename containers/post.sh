# What the recipes' %post sections share. `parbench images` lays this file, the lock file and this
# machine's settings (its package mirrors and certificates) into /parbench-build for the time of the
# build; clean_up takes them away again, so that no image knows where it was built.
# Beware: /tmp is the building machine's own in a %post section.
export DEBIAN_FRONTEND=noninteractive
export PYTHONHASHSEED=0
. /parbench-build/machine.sh # MIRROR, SOURCE_DATE_EPOCH, UV_*, PIP_*, proxies

# Whether this machine's mirror serves this image's system: a given base may be an Ubuntu.
own_mirror() {
    [ -n "$MIRROR" ] && grep -q "^VERSION_CODENAME=bookworm" /etc/os-release
}

apt_get() {
    if own_mirror; then
        echo "deb $MIRROR bookworm main" >/etc/apt/sources.list
        rm -f /etc/apt/sources.list.d/*
    fi
    for attempt in 1 2 3; do # mirrors fail now and then
        apt-get -qq update && apt-get -qq --no-install-recommends "$@" && return
        echo "parbench: apt-get $* failed, attempt $attempt of 3" >&2
        sleep $((attempt * 5))
    done
    echo "error: apt-get $* failed three times; is the Debian mirror reachable?" >&2
    return 1
}

# Each package in the locked version, each file with the locked SHA-256. Compiled here, since nobody
# can write into an image, and by the source's hash, since times differ between builds.
install() {
    /parbench-build/uv pip install --quiet --python /opt/parbench/bin/python --no-deps --no-config \
        --link-mode copy "$@"
    compile
}

compile() {
    /opt/parbench/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
        /opt/parbench/lib/python3.11/site-packages >/dev/null || true # some packages ship templates
}

clean_up() {
    apt-get clean
    if own_mirror; then
        echo "deb http://deb.debian.org/debian bookworm main" >/etc/apt/sources.list
    fi
    rm -rf /parbench-build /root/.cache /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache
    rmdir /parbench-mirrors/* /parbench-mirrors 2>/dev/null || true # busy where a mirror is mounted
    find /var/log -type f -delete
    : >/etc/machine-id
}
