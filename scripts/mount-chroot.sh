# To be sourced in a mount namespace, in the tree's directory: mounts what every program in a chroot needs, and enters
# the directory of the chroot. It becomes a mount, as pivot_root demands.
#
#   . scripts/mount-chroot.sh ROOT
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/net dev/pts dev/shm
for device in null zero full random urandom tty net/tun; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
