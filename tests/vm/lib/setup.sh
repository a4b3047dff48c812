# Process 1 of the VM: prepares it as an operator would, then starts the agent, by which tests work in it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t tmpfs tmpfs /run
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t bpf bpf /sys/fs/bpf
hostname turnpike-vm
ip link set lo up

# modprobe finds all of the kernel's modules.
mkdir -p /lib/modules
ln -s "$LAB_MODULES" "/lib/modules/$(uname -r)"
modprobe -a vfio-pci uio_pci_generic tun virtio_console

for node in /sys/devices/system/node/node*; do
    echo "$LAB_HUGEPAGES" >"$node/hugepages/hugepages-2048kB/nr_hugepages"
done
ulimit -l unlimited

"$LAB_PYTHON" -E -S "$LAB_AGENT"
echo "the agent has ended"
sync
echo o >/proc/sysrq-trigger
sleep 10
