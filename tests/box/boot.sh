#!/bin/sh
# Boots a throwaway machine from this machine's own files: an overlay over /, real systemd, journald, logind and sshd.
# Runs inside a mount namespace of its own that holds STATE, a tmpfs; all that the box writes lives and dies there.
# `systemctl reboot` in the box boots the same files again; any other end of it ends this script.
#
# usage: boot.sh hold   STATE CGROUP PORT KEY [PATH…]   (in a private mount namespace; returns when the box has ended)
#        boot.sh inside STATE                           (as PID 1 of the box's namespaces)
#        boot.sh clean  CGROUP                          (in a private mount namespace, after the box has ended)
# CGROUP: a name for the control group that the box runs in, so that its systemd leaves the host's own groups alone.
# PATH…: folders the box must be able to read although they lie outside the root file system or under /tmp or /run.
set -eu

prepare() {
    root=$1 port=$2 key=$3
    shift 3
    # Units the host has enabled make no sense here; what the box needs is linked by hand.
    rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/*.requires
    mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
    ln -s /lib/systemd/system/ssh.service "$root/etc/systemd/system/multi-user.target.wants/ssh.service"
    for unit in getty.target console-getty.service systemd-networkd.service systemd-resolved.service ssh.socket \
        systemd-timesyncd.service systemd-udevd.service systemd-udev-trigger.service systemd-modules-load.service \
        systemd-sysctl.service systemd-binfmt.service systemd-oomd.service tmp.mount modprobe@.service \
        dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    rm -rf "$root"/var/log/journal "$root"/etc/ssh/ssh_host_*_key* "$root"/etc/ssh/sshd_config.d "$root"/etc/fstab
    mkdir -p "$root/var/log/journal" "$root/var/lib/systemd/linger" "$root/etc/ssh/sshd_config.d"
    tr -d '-' </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
    echo ddtree-box >"$root/etc/hostname"
    cat >"$root/etc/ssh/sshd_config.d/box.conf" <<EOF
Port $port
ListenAddress 127.0.0.1
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
UseDNS no
EOF
    ssh-keygen -q -A -f "$root"
    useradd -R "$root" -m -s /bin/bash -p '*' ops
    usermod -R "$root" -aG systemd-journal ops
    for home in root home/ops; do
        rm -rf "$root/$home/.ssh" "$root/$home/.config/systemd"
        mkdir -p -m 700 "$root/$home/.ssh"
        cp "$key" "$root/$home/.ssh/authorized_keys"
    done
    chroot "$root" chown -R ops:ops /home/ops
    touch "$root/var/lib/systemd/linger/ops"
}

reach() { # let every user walk to the path and read what is in it; the host's own files keep their modes
    root=$1 path=$2
    # Files made under a tight umask are closed to others one by one.
    [ -n "$(find "$path" -maxdepth 0 -perm -o=rx)" ] || chmod -R o+rX "$root$path"
    until [ "$path" = / ]; do
        chmod o+x "$root$path"
        path=$(dirname "$path")
    done
}

hold() {
    state=$1 cgroup=$2 port=$3 key=$4
    shift 4
    mount -t tmpfs -o mode=755 tmpfs "$state"
    mkdir "$state/cgroup"
    mount -t cgroup2 cgroup2 "$state/cgroup"
    mkdir "$state/cgroup/$cgroup"
    echo $$ >"$state/cgroup/$cgroup/cgroup.procs"
    mkdir "$state/upper" "$state/work" "$state/root" "$state/extra"
    overlay() { # metacopy: a change of mode alone must not copy a file into memory
        mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3,metacopy=on" "$4" 2>/dev/null ||
            mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" "$4"
    }
    overlay / "$state/upper" "$state/work" "$state/root"
    # Whatever is mounted below / is not part of the overlay, and /tmp and /run are the box's own.
    number=0
    : >"$state/extra/list"
    for path in "$@"; do
        case $path in
        /tmp/* | /run/*) ;;
        *) [ -e "$state/root$path/$(ls -A "$path" | head -n 1)" ] && reach "$state/root" "$path" && continue ;;
        esac
        number=$((number + 1))
        mkdir "$state/extra/upper$number" "$state/extra/work$number" "$state/extra/$number"
        overlay "$path" "$state/extra/upper$number" "$state/extra/work$number" "$state/extra/$number"
        echo "$number $path" >>"$state/extra/list"
    done
    prepare "$state/root" "$port" "$key"
    while :; do
        status=0
        setpriv --pdeathsig KILL \
            unshare --mount --pid --uts --ipc --cgroup --fork --kill-child "$0" inside "$state" || status=$?
        # The kernel ends a PID namespace that reboots by SIGHUP.
        [ "$status" -eq 129 ] || exit "$status"
    done
}

inside() {
    state=$1 root=$1/root
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --bind "$root/proc/sys" "$root/proc/sys"
    mount -o remount,bind,ro "$root/proc/sys" # the kernel's settings are the host's
    # The kernel's boot id is the host's as well; each boot of the box gets one of its own.
    cat /proc/sys/kernel/random/uuid >"$state/boot_id"
    mount --bind "$state/boot_id" "$root/proc/sys/kernel/random/boot_id"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for device in null zero full random urandom tty; do
        : >"$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    while read -r number path; do
        mkdir -p "$root$path"
        mount --bind "$state/extra/$number" "$root$path"
        reach "$root" "$path"
    done <"$state/extra/list"
    cd "$root"
    mkdir -p run/old
    pivot_root . run/old
    umount -l /run/old
    rmdir /run/old
    exec env -i container=lxc PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=multi-user.target >/dev/null 2>&1 </dev/null
}

clean() {
    folder=$(mktemp -d)
    mount -t tmpfs tmpfs "$folder"
    mkdir "$folder/cgroup"
    mount -t cgroup2 cgroup2 "$folder/cgroup"
    find "$folder/cgroup/$1" -depth -type d -exec rmdir {} +
    umount -R "$folder"
    rmdir "$folder"
}

verb=$1
shift
"$verb" "$@"
