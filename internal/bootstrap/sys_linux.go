package bootstrap

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// haveLocal: this system has abstract unix sockets and peer credentials.
const haveLocal = true

func setUnackedTimeout(c *net.TCPConn, d time.Duration) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return set
}

// checkPeerUser refuses the sockets of other users: abstract names have no
// permissions of their own.
func checkPeerUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var get error
	err = raw.Control(func(fd uintptr) {
		cred, get = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return err
	}
	if get != nil {
		return get
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: it runs as user %d, this process as user %d", ErrStranger, cred.Uid, os.Geteuid())
	}
	return nil
}

// hostDetails tells apart what may share a host name: machines, by this boot's
// number, and containers, by their network namespace.
func hostDetails() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	netns, _ := os.Readlink("/proc/self/ns/net")
	return string(boot) + netns
}
