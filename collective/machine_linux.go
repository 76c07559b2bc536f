package collective

import "os"

// ownMachine is the boot and the network namespace that this process lives in: in
// another one, though on the same machine, it could not ask for memory.
func ownMachine() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	network, _ := os.Readlink("/proc/self/ns/net")
	host, _ := os.Hostname()
	return host + " " + string(boot) + " " + network
}
