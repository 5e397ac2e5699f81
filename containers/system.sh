#!/usr/bin/env bash
# What the full suite needs of the system, on Debian and Ubuntu: Apptainer, Slurm, Chromium, Java, zsh.
#
#     sudo make system                            # all of it
#     sudo make system ARGS=chromium              # one part
#     sudo make system ARGS=accounting            # a part that only tests of a Slurm with accounting need
#
# Elsewhere it says which packages are lacking. What is there is left as it is. Services are neither started nor configured. Where the distribution has no
# Apptainer (Debian 12), Debian's unstable one is unpacked with its own libraries into a folder of its own, so
# that no library of the system changes.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
apt=(apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
prefix=/opt/parbench/apptainer

say() { echo "parbench: $*" >&2; }
stop() { echo "error: $*" >&2; exit 2; }

# The programs that are looked for, and the packages that hold them: of Debian and Ubuntu, of Fedora and RHEL,
# of openSUSE and SLE; one name where all have the same.
declare -A programs=(
    [apptainer]="mksquashfs=squashfs-tools,squashfs-tools,squashfs squashfuse_ll=squashfuse
        fuse-overlayfs=fuse-overlayfs newuidmap=uidmap,shadow-utils,shadow fakeroot=fakeroot
        debootstrap=debootstrap"
    [slurm]="sbatch=slurm-wlm,slurm,slurm srun=slurm-wlm,slurm,slurm slurmctld=slurm-wlm,slurm-slurmctld,slurm
        slurmd=slurm-wlm,slurm-slurmd,slurm-node munged=munge"
    [accounting]="slurmdbd=slurmdbd,slurm-slurmdbd,slurm-slurmdbd mariadbd=mariadb-server-core,mariadb-server,mariadb"
    [chromium]="chromium=chromium chromedriver=chromium-driver,chromedriver,chromedriver
        pdftotext=poppler-utils,poppler-utils,poppler-tools"
    [java]="java=openjdk-17-jre-headless,java-21-openjdk-headless,java-17-openjdk-headless"
    [zsh]="zsh=zsh"
)

# An Apptainer that runs and is new enough for build arguments.
new_enough() { [[ $("$1" --version 2>/dev/null) =~ ([0-9]+)\.([0-9]+) ]] \
    && ((BASH_REMATCH[1] > 1 || BASH_REMATCH[2] >= 2)); }

# Debian's unstable Apptainer, with the libraries that it needs, by an apt of its own that checks signatures.
install_private() {
    local mirror options packages="" wanted=apptainer libraries loader program
    [[ $(. /etc/os-release; echo "$ID") == debian ]] \
        || stop "no Apptainer in this system's archive; https://apptainer.org/docs/admin/latest/installation.html"
    mirror=$(apt-get indextargets --no-release-info --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' \
        | grep -m 1 '/debian/*$') || stop "apt's sources name no mirror of Debian"
    work=$(mktemp -d)
    mkdir -p "$work"/{lists/partial,archives/partial,none} "$prefix"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sources"
    : >"$work/status"
    options=(-o Dir::State::Lists="$work/lists" -o Dir::State::status="$work/status" -o Dir::Etc::SourceList="$work/sources"
        -o Dir::Etc::SourceParts="$work/none" -o Dir::Etc::PreferencesParts="$work/none" -o Dir::Cache="$work"
        -o APT::Sandbox::User= -o APT::Default-Release= -o APT::Update::Error-Mode=any -o Acquire::Languages=none)
    "${apt[@]}" "${options[@]}" update >&2
    while [[ -n $wanted ]]; do # its libraries, and theirs; what is no library the system has
        packages="$packages $wanted"
        libraries=$(apt-cache "${options[@]}" show --no-all-versions $wanted \
            | sed -nE 's/^(Pre-)?Depends: //p' | tr ',' '\n' | sed -nE 's/^ *(lib[a-z0-9.+-]+).*/\1/p' | sort -u)
        wanted=$(comm -23 <(echo "$libraries" | sed '/^$/d') <(tr ' ' '\n' <<<"$packages" | sort -u) | xargs)
    done
    command -v patchelf >/dev/null || "${apt[@]}" -y install --no-install-recommends patchelf >&2
    (cd "$work/archives" && "${apt[@]}" "${options[@]}" download $packages >&2)
    for program in "$work"/archives/*.deb; do dpkg -x "$program" "$prefix"; done
    cd "$prefix"
    ln -sfn ../etc usr/etc # it takes its own folders relative to its two programs
    ln -sfn ../var usr/var
    mkdir -p usr/lib/etc usr/lib/var/lib/apptainer/mnt/session
    ln -sfn ../../../etc/apptainer usr/lib/etc/apptainer
    loader=$(find usr/lib64 usr/lib -maxdepth 1 -name 'ld-linux*' 2>/dev/null | head -1 || true)
    libraries=$(dirname usr/lib/*/libc.so.6)
    for program in usr/bin/apptainer usr/lib/*/apptainer/bin/*; do # an rpath holds for the libraries' libraries, too
        patchelf --set-interpreter "$prefix/$loader" --force-rpath --set-rpath "$prefix/$libraries" "$program"
    done
    ln -sfn "$prefix/usr/bin/apptainer" /usr/local/bin/apptainer
    new_enough apptainer || stop "$prefix/usr/bin/apptainer does not run; is the file system mounted noexec?"
}

# Apptainer wants a range of ids for who builds images: who calls this, and root's caller by sudo.
give_ids() {
    local user first
    for user in root ${SUDO_USER:-}; do
        if ! grep -qs "^$user:" /etc/subuid || ! grep -qs "^$user:" /etc/subgid; then
            first=$((200000 + 65536 * $(cat /etc/subuid /etc/subgid 2>/dev/null | wc -l))) # behind all others
            usermod --add-subuids "$first-$((first + 65535))" --add-subgids "$first-$((first + 65535))" "$user"
        fi
    done
}

# This system's package manager, empty if unknown, and the column of its names above.
manager=apt column=1
case "$(. /etc/os-release 2>/dev/null; echo "${ID:-} ${ID_LIKE:-}")" in
*debian* | *ubuntu*) ;;
*fedora* | *rhel*) manager=dnf column=2 ;;
*suse*) manager=zypper column=3 ;;
*) manager="" ;;
esac

policy="" work=""
trap 'rm -rf -- "$policy" "$work"' EXIT
parts=("$@")
((${#parts[@]})) || parts=(apptainer slurm chromium java zsh)
packages=""
for part in "${parts[@]}"; do
    [[ -n ${programs[$part]:-} ]] || stop "$part: parts are apptainer, slurm, accounting, chromium, java, zsh"
    if [[ $part == slurm ]] && ls /etc/slurm*/slurm.conf /run/slurm/conf/slurm.conf >/dev/null 2>&1; then
        say "slurm: left as it is, since this machine has its own"
        continue
    fi
    for entry in ${programs[$part]}; do
        command -v "${entry%=*}" >/dev/null || packages="$packages $(cut -d , -f $column <<<"${entry#*=}")"
    done
done
if [[ $manager != apt ]]; then
    [[ " ${parts[*]} " != *" apptainer "* ]] || new_enough apptainer || packages="$packages apptainer"
    [[ -n $packages ]] || { say "all is there: ${parts[*]}"; exit; }
    packages=$(tr ' ' '\n' <<<"$packages" | sort -u | tr '\n' ' ')
    [[ -n $manager ]] || stop "make system installs on Debian and Ubuntu alone; here install (by Debian's names):$packages"
    stop "make system installs on Debian and Ubuntu alone; here: sudo $manager install$packages"
fi
[[ $(id -u) == 0 ]] || stop "this needs root: sudo make system"
if [[ -n $packages ]]; then
    "${apt[@]}" update >&2
    # Newer systems have no Java 17 any more.
    apt-cache show openjdk-17-jre-headless >/dev/null 2>&1 || packages=${packages/openjdk-17-/openjdk-21-}
    if [[ ! -e /usr/sbin/policy-rc.d ]]; then # Debian's own switch against services that start when installed
        policy=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
    fi
    "${apt[@]}" -y install --no-install-recommends $packages >&2
fi
if [[ " ${parts[*]} " == *" apptainer "* ]]; then
    give_ids
    new_enough apptainer || "${apt[@]}" -y install apptainer >&2 || true
    new_enough apptainer || install_private
fi
say "all is there: ${parts[*]}"
