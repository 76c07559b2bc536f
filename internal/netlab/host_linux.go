package netlab

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Host is a network namespace that is joined to those of the other hosts of its lab.
type Host struct {
	lab       *Lab
	index     int
	name      string
	namespace string
	file      *os.File // of the namespace
	port      string   // of the bridge: the host's
	cable     *cable   // what carries frames between eth0 and port, or nil
}

// Name means Address and Address6 on all hosts of the lab, but see LoopbackNames.
func (h *Host) Name() string { return h.name }

// Address is the host's in 10.77.0.0/24.
func (h *Host) Address() netip.Addr { return address(net4, h.index) }

// Address6 is the host's in fd77::/64, a unique local network.
func (h *Host) Address6() netip.Addr { return address(net6, h.index) }

// Interface is the name of the one that has these addresses.
func (h *Host) Interface() string { return "eth0" }

// Prefix is what to put before a program and its arguments to have it run on the
// host, with the host's names. No process stands between: the program replaces it.
// Each program has a mount namespace of its own.
func (h *Host) Prefix() []string { return []string{"ip", "netns", "exec", h.namespace} }

// Command is exec.Command for a program on the host. Programs that still run when the
// test ends fail it, and are killed.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	words := append(append(h.Prefix(), name), args...)
	return exec.Command(words[0], words[1:]...)
}

// Do calls f on a thread that is on the host: sockets that f itself makes, not a
// goroutine that it starts, are the host's for as long as they live.
func (h *Host) Do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Setns(int(h.file.Fd()), unix.CLONE_NEWNET)
		if err != nil {
			err = fmt.Errorf("netlab: can't enter %s: %w", h.namespace, err)
		} else {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// Dial connects from the host to an address with a literal IP.
func (h *Host) Dial(address string, timeout time.Duration) (c net.Conn, err error) {
	err = h.Do(func() error {
		c, err = net.DialTimeout("tcp", address, timeout)
		return err
	})
	return c, err
}

// Listen is net.Listen for TCP on the host, at an address with a literal IP.
func (h *Host) Listen(address string) (l net.Listener, err error) {
	err = h.Do(func() error {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

// A Flow is an end of a TCP connection, or of what is left of one.
type Flow struct {
	Local, Remote netip.AddrPort
	// KeptAlive: the host will probe it when it is idle.
	KeptAlive bool
}

// Flows lists the host's connections with another host, those that are being made or
// ended included.
func (h *Host) Flows(with *Host) []Flow {
	h.lab.t.Helper()
	out, err := h.Command("ss", "-Htno", "state", "connected").Output()
	if err != nil {
		h.lab.t.Fatalf("netlab: ss: %v", err)
	}
	var flows []Flow
	for line := range strings.Lines(string(out)) {
		// State, two queues, this end, the other end, a timer.
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[0] == "TIME-WAIT" {
			continue
		}
		f := Flow{KeptAlive: strings.Contains(line, "timer:(keepalive,")}
		if f.Local, err = netip.ParseAddrPort(fields[3]); err == nil {
			f.Remote, err = netip.ParseAddrPort(fields[4])
		}
		if err != nil {
			h.lab.t.Fatalf("netlab: ss says %q: %v", line, err)
		}
		f.Local = netip.AddrPortFrom(f.Local.Addr().Unmap(), f.Local.Port())
		f.Remote = netip.AddrPortFrom(f.Remote.Addr().Unmap(), f.Remote.Port())
		if a := f.Remote.Addr(); a == with.Address() || a == with.Address6() {
			flows = append(flows, f)
		}
	}
	return flows
}

// Listening lists the ports on which programs of the host accept connections.
func (h *Host) Listening() []uint16 {
	h.lab.t.Helper()
	out, err := h.Command("ss", "-Hltn").Output()
	if err != nil {
		h.lab.t.Fatalf("netlab: ss: %v", err)
	}
	var ports []uint16
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		var port uint16
		if _, err := fmt.Sscan(fields[3][strings.LastIndexByte(fields[3], ':')+1:], &port); err != nil {
			h.lab.t.Fatalf("netlab: ss says %q: %v", line, err)
		}
		ports = append(ports, port)
	}
	return ports
}

// etc is the directory with the files that programs of the host see in /etc.
func (h *Host) etc() string { return filepath.Join("/etc/netns", h.namespace) }

// ip runs a command of iproute2's in the namespace.
func (h *Host) ip(args ...string) (out []byte, err error) {
	return exec.Command("ip", append([]string{"-n", h.namespace}, args...)...).CombinedOutput()
}

// batch runs several, and fails the test if one fails.
func (h *Host) batch(commands ...string) {
	h.lab.t.Helper()
	if len(commands) == 0 {
		return
	}
	cmd := exec.Command("ip", "-n", h.namespace, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		h.lab.t.Fatalf("netlab: ip, of %q: %v: %s", commands, err, out)
	}
}

// remove takes the namespace away. What still runs in it is the test's mistake.
func (h *Host) remove() {
	if h.cable != nil {
		h.cable.close()
	}
	if pids := pidsIn(h.namespace); len(pids) > 0 {
		h.lab.t.Errorf("netlab: processes %v still run on %s", pids, h.Name())
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	if h.file != nil {
		h.file.Close()
	}
	if err := removeNamespace(h.namespace); err != nil {
		h.lab.t.Errorf("netlab: %v", err)
	}
}

// pidsIn lists the processes in a namespace.
func pidsIn(namespace string) []int {
	out, err := exec.Command("ip", "netns", "pids", namespace).Output()
	if err != nil {
		return nil
	}
	var pids []int
	for _, text := range bytes.Fields(out) {
		var pid int
		if _, err := fmt.Sscan(string(text), &pid); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

func removeNamespace(name string) error {
	if err := os.RemoveAll(filepath.Join("/etc/netns", name)); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
		return fmt.Errorf("ip netns del %s: %w: %s", name, err, out)
	}
	return nil
}
