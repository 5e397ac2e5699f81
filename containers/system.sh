#!/usr/bin/env bash
# What the full suite needs of the system, on Debian and Ubuntu: Apptainer, Slurm, Chromium.
#
#     sudo make system                            # all of it
#     sudo make system ARGS=chromium              # one part
#     make system ARGS=--check                    # what is lacking; installs nothing
#     make system ARGS="apptainer --prefix DIR"   # Apptainer in a folder of one's own, without root
#
# What is there is left as it is. Services are neither started nor configured. Where the distribution has no
# Apptainer (Debian 12), Debian's unstable one is unpacked with its own libraries into a folder of its own, so
# that no library of the system changes.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

say() { echo "parbench: $*" >&2; }
stop() { echo "error: $*" >&2; exit 2; }

check=no own="" prefix=${PARBENCH_APPTAINER_PREFIX:-/opt/parbench/apptainer} parts=()
while (($#)); do
    case $1 in
        --check) check=yes ;;
        --prefix) own=yes; prefix=$(realpath -m -- "${2:?--prefix needs a folder}"); shift ;;
        apptainer | slurm | chromium) parts+=("$1") ;;
        *) stop "$1: parts are apptainer, slurm, chromium; options are --check and --prefix DIR" ;;
    esac
    shift
done
((${#parts[@]})) || parts=(apptainer slurm chromium)
[[ -z $own || ${parts[*]} == apptainer ]] \
    || stop '--prefix is for Apptainer alone: make system ARGS="apptainer --prefix DIR"'

# The programs that are looked for, and the packages of Debian and Ubuntu that hold them.
declare -A programs=(
    [apptainer]="mksquashfs=squashfs-tools squashfuse_ll=squashfuse fuse-overlayfs=fuse-overlayfs
        newuidmap=uidmap fakeroot=fakeroot debootstrap=debootstrap"
    [slurm]="sbatch=slurm-wlm srun=slurm-wlm slurmctld=slurm-wlm slurmd=slurm-wlm munged=munge"
    [chromium]="chromium=chromium chromedriver=chromium-driver pdftotext=poppler-utils"
)

# An Apptainer that runs and is new enough for build arguments.
new_enough() { [[ $("$1" --version 2>/dev/null) =~ ([0-9]+)\.([0-9]+) ]] \
    && ((BASH_REMATCH[1] > 1 || BASH_REMATCH[2] >= 2)); }
find_apptainer() {
    new_enough "$prefix/usr/bin/apptainer" || { [[ -z $own ]] && new_enough "${PARBENCH_APPTAINER:-apptainer}"; }
}
# Who builds images: who calls this; also root's caller by sudo.
builders() { id -un; [[ -z ${SUDO_USER:-} || $SUDO_USER == root ]] || echo "$SUDO_USER"; }
has_ids() { awk -F: -v name="$1" -v id="$(id -u "$1")" '($1 == name || $1 == id) && $3 >= 65536 {found = 1}
    END {exit !found}' "$2" 2>/dev/null; }

# A line for each thing that is lacking: part, what, package.
lacking() {
    local part entry user file
    for part in "${parts[@]}"; do
        if [[ $part == slurm ]] && ls /etc/slurm*/slurm.conf /run/slurm/conf/slurm.conf >/dev/null 2>&1; then
            say "slurm: left as it is, since this machine has its own"
            continue
        fi
        [[ $part != apptainer ]] || find_apptainer || echo "apptainer: no Apptainer 1.2 or newer (package apptainer)"
        for entry in ${programs[$part]}; do
            command -v "${entry%=*}" >/dev/null || echo "$part: no ${entry%=*} (package ${entry#*=})"
        done
        [[ $part == apptainer && -z $own ]] || continue
        for file in /etc/subuid /etc/subgid; do
            for user in $(builders); do
                has_ids "$user" "$file" || echo "apptainer: no range of ids for $user in $file; sudo make system"
            done
        done
    done
}

# Run a command, three times at most: mirrors fail now and then.
persist() {
    local pause
    for pause in 5 20 0; do
        "$@" && return
        ((pause)) || stop "this failed three times: $*; run the same again later, what was installed stays"
        say "$1 failed; again in $pause s"
        sleep "$pause"
    done
}

# Debian's unstable Apptainer, with the libraries that it needs, by an apt of its own that checks signatures.
install_private() {
    [[ $(. /etc/os-release; echo "$ID") == debian ]] \
        || stop "no Apptainer in this system's archive; Ubuntu: add-apt-repository ppa:apptainer/ppa;" \
            "else https://apptainer.org/docs/admin/latest/installation.html"
    [[ $prefix != *[\ :]* ]] || stop "$prefix: choose a folder without blanks and colons in its path"
    command -v patchelf >/dev/null || stop "Apptainer in $prefix needs patchelf: sudo apt-get install patchelf"
    local mirror options packages package wanted program libraries loader
    mkdir -p "${prefix%/*}"
    work=$(mktemp -d "$prefix.XXXXXX")
    trap 'rm -rf -- "$work"' EXIT
    mkdir -p "$work"/{lists/partial,archives/partial,none,root}
    mirror=$(apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' \
        | awk '$1 ~ /\/debian\/?$/ && $3 == "main" {print $1; exit}')
    [[ -n $mirror ]] || stop "apt's sources name no mirror of Debian"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sources"
    : >"$work/status"
    options=(-q -o Dir::State::Lists="$work/lists" -o Dir::State::status="$work/status" -o Dir::Etc::SourceList="$work/sources"
        -o Dir::Etc::SourceParts="$work/none" -o Dir::Etc::PreferencesParts="$work/none" -o Dir::Cache="$work"
        -o APT::Sandbox::User= -o APT::Default-Release= -o APT::Update::Error-Mode=any -o Acquire::Languages=none)
    persist apt-get "${options[@]}" update >&2
    wanted=apptainer packages=""
    while [[ -n $wanted ]]; do # its libraries, and theirs; what is no library the system has
        packages="$packages $wanted"
        libraries=$(apt-cache "${options[@]}" show --no-all-versions $wanted \
            | sed -nE 's/^(Pre-)?Depends: //p' | tr ',' '\n' | sed -nE 's/^ *(lib[a-z0-9.+-]+).*/\1/p' | sort -u)
        wanted=$(comm -23 <(echo "$libraries" | sed '/^$/d') <(tr ' ' '\n' <<<"$packages" | sort -u) | xargs)
    done
    (cd "$work/archives" && persist apt-get "${options[@]}" download $packages >&2)
    for package in "$work"/archives/*.deb; do dpkg -x "$package" "$work/root"; done
    cd "$work/root"
    ln -s ../etc usr/etc # it takes its own folders relative to its two programs
    ln -s ../var usr/var
    mkdir -p usr/lib/etc usr/lib/var/lib/apptainer/mnt/session
    ln -s ../../../etc/apptainer usr/lib/etc/apptainer
    loader=$(find usr/lib64 usr/lib -maxdepth 1 -name 'ld-linux*' 2>/dev/null | head -1 || true)
    libraries=$(dirname usr/lib/*/libc.so.6)
    for program in usr/bin/apptainer usr/lib/*/apptainer/bin/*; do # an rpath holds for the libraries' libraries, too
        patchelf --set-interpreter "$prefix/$loader" --force-rpath --set-rpath "$prefix/$libraries" "$program"
    done
    chmod 755 .
    rm -rf -- "$prefix"
    mv "$work/root" "$prefix"
    new_enough "$prefix/usr/bin/apptainer" || stop "$prefix/usr/bin/apptainer does not run; is the file system mounted noexec?"
    say "Apptainer is in $prefix"
}

missing=$(lacking)
if [[ $check == yes ]]; then
    echo "${missing:-all is there: ${parts[*]}}"
    [[ -z $missing ]] || exit 1
    exit
fi
if [[ -n $own ]]; then
    find_apptainer || install_private
    lacking | sed 's/^apptainer:/parbench: building and mounting images also wants:/' >&2
    echo "export PARBENCH_APPTAINER=$prefix/usr/bin/apptainer"
    exit
fi
if [[ -n $missing ]]; then
    echo "$missing" | sed 's/^/parbench: /' >&2
    [[ $(id -u) == 0 ]] || stop 'installing this needs root: sudo make system. Apptainer alone can be had without:' \
        'make system ARGS="apptainer --prefix $HOME/.local/opt/apptainer"'
    command -v apt-get >/dev/null || stop "this is no Debian or Ubuntu: there is no apt-get"
    persist apt-get -q update >&2
    packages=$(sed -nE 's/.*\(package (.*)\)$/\1/p' <<<"$missing" | sort -u)
    grep -qx apptainer <<<"$packages" && packages="$packages patchelf debian-archive-keyring"
    offered=""
    for package in $packages; do # Ubuntu's chromium only installs a snap
        [[ $(apt-cache policy "$package" | sed -n 's/.*Candidate: //p') =~ ^(|\(none\)|.*snap.*)$ ]] || offered="$offered $package"
    done
    if [[ -n $offered ]]; then
        ours="" # Debian's own switch against services that start once they are installed
        [[ -e /usr/sbin/policy-rc.d ]] || { ours=yes; printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d; }
        trap '[[ -z $ours ]] || rm -f /usr/sbin/policy-rc.d' EXIT
        persist apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $offered >&2
        [[ -z $ours ]] || rm -f /usr/sbin/policy-rc.d
    fi
    if [[ " ${parts[*]} " == *" apptainer "* ]]; then
        for user in $(builders); do
            first=$((200000 + 65536 * $(cat /etc/subuid /etc/subgid 2>/dev/null | wc -l))) # behind all others
            has_ids "$user" /etc/subuid || usermod --add-subuids "$first-$((first + 65535))" "$user"
            has_ids "$user" /etc/subgid || usermod --add-subgids "$first-$((first + 65535))" "$user"
        done
        find_apptainer || { install_private; [[ -e /usr/local/bin/apptainer ]] || ln -sf "$prefix/usr/bin/apptainer" /usr/local/bin/apptainer; }
    fi
    missing=$(lacking)
    [[ -z $missing ]] || stop "still lacking: $missing (Chromium where apt has none: sudo snap install chromium)"
fi
say "all is there: ${parts[*]}"
