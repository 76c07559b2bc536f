package netlab

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// A Lab is some hosts and the switch between them. Its methods belong to the test's
// goroutine, and fail the test when the system refuses.
type Lab struct {
	t      testing.TB
	hosts  []*Host
	center *Host // the switch: it has no address
	cut    map[[2]int]bool
}

// An Option changes how New makes hosts.
type Option func(*options)

type options struct {
	name          func(int) string
	loopbackNames bool
	decoys        int
}

// Names gives hosts other names than host0, host1 and so on.
func Names(of func(i int) string) Option { return func(o *options) { o.name = of } }

// LoopbackNames makes a host's own name, and that of the machine, mean 127.0.1.1 on
// it, as Debian's installer does; other hosts know its real address.
func LoopbackNames() Option { return func(o *options) { o.loopbackNames = true } }

// Decoys gives every host n more interfaces, before the one that matters, that are up
// and lead nowhere. Every other one has the same address on all hosts, as the bridges
// of container engines do: who calls it there calls himself.
func Decoys(n int) Option { return func(o *options) { o.decoys = n } }

var labs atomic.Int64

// New makes a lab of up to 100 hosts that is gone when the test ends, and with it what
// an earlier process left behind that was killed.
func New(t testing.TB, hosts int, opts ...Option) *Lab {
	t.Helper()
	o := options{name: func(i int) string { return fmt.Sprintf("host%d", i) }}
	for _, opt := range opts {
		opt(&o)
	}
	if hosts < 1 || hosts > 100 {
		t.Fatalf("netlab: %d hosts, accepted are 1 to 100", hosts)
	}
	needs(t)
	removeLeftovers()
	l := &Lab{t: t, cut: make(map[[2]int]bool)}
	name := fmt.Sprintf("%s-%d", ownPrefix(), labs.Add(1))
	l.center = l.namespace(name+"-switch", "switch", -1)
	if out, err := l.center.ip("link", "add", "bridge", "type", "bridge"); err != nil {
		t.Skipf("netlab: the kernel has no bridges: %v: %s", err, out)
	}
	l.center.batch("link set bridge up")
	for i := range hosts {
		h := l.namespace(fmt.Sprintf("%s-%d", name, i), o.name(i), i)
		l.hosts = append(l.hosts, h)
		h.makeDecoys(o.decoys)
		h.join(l.center)
	}
	for _, h := range l.hosts {
		h.writeNames(o.loopbackNames)
	}
	return l
}

// needs skips where there can be no lab.
func needs(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("netlab: needs root, to make network namespaces")
	}
	for _, tool := range []string{"ip", "tc", "ss"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("netlab: %s is not installed (Debian: apt-get install iproute2)", tool)
		}
	}
}

// namespace makes one that is removed when the test ends.
func (l *Lab) namespace(name, host string, index int) *Host {
	l.t.Helper()
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		l.t.Skipf("netlab: can't make network namespaces: %v: %s", err, out)
	}
	h := &Host{lab: l, index: index, name: host, namespace: name}
	l.t.Cleanup(h.remove)
	var err error
	if h.file, err = os.Open(filepath.Join("/var/run/netns", name)); err != nil {
		l.t.Fatalf("netlab: %v", err)
	}
	// Addresses are the ones that are given: none that interfaces make up.
	err = h.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/addr_gen_mode", []byte("1"), 0o644)
	})
	if os.IsNotExist(err) {
		l.t.Skip("netlab: the kernel has no IPv6")
	}
	if err != nil {
		l.t.Fatalf("netlab: %v", err)
	}
	h.batch("link set lo up")
	return h
}

// Hosts is how many there are.
func (l *Lab) Hosts() int { return len(l.hosts) }

// Host is the host with the number.
func (l *Lab) Host(i int) *Host { return l.hosts[i] }

// address is that of a host, of the family of prefix.
func address(prefix netip.Prefix, index int) netip.Addr {
	bytes := prefix.Addr().AsSlice()
	bytes[len(bytes)-1] = byte(index + 1)
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

var (
	net4 = netip.MustParsePrefix("10.77.0.0/24")
	net6 = netip.MustParsePrefix("fd77::/64")
)

// writeNames makes the file that programs of the host see as /etc/hosts.
func (h *Host) writeNames(loopback bool) {
	h.lab.t.Helper()
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, other := range h.lab.hosts {
		if other == h && loopback {
			machine, _ := os.Hostname()
			fmt.Fprintf(&b, "127.0.1.1 %s %s\n", h.name, machine)
			continue
		}
		fmt.Fprintf(&b, "%v %s\n%v %s\n", other.Address(), other.name, other.Address6(), other.name)
	}
	err := os.MkdirAll(h.etc(), 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(h.etc(), "hosts"), []byte(b.String()), 0o644)
	}
	if err != nil {
		h.lab.t.Fatalf("netlab: %v", err)
	}
}

func (h *Host) makeDecoys(n int) {
	h.lab.t.Helper()
	var commands []string
	for i := range n {
		third := i / 2
		if i%2 == 1 {
			third = 100 + h.index
		}
		commands = append(commands,
			fmt.Sprintf("link add decoy%d type veth peer name end%d", i, i),
			fmt.Sprintf("addr add 10.%d.%d.1/24 dev decoy%d", 100+i, third, i),
			fmt.Sprintf("link set end%d up", i),
			fmt.Sprintf("link set decoy%d up", i))
	}
	h.batch(commands...)
}

// socket is the other end of eth0.
func (h *Host) socket() string { return fmt.Sprintf("port%d", h.index) }

// join plugs the host into the switch.
func (h *Host) join(center *Host) {
	h.lab.t.Helper()
	h.port = h.socket()
	if out, err := center.ip("link", "add", h.port, "type", "veth", "peer", "name", "eth0", "netns", h.namespace); err != nil {
		h.lab.t.Skipf("netlab: the kernel has no veth interfaces: %v: %s", err, out)
	}
	center.batch("link set " + h.port + " master bridge up")
	h.batch(
		fmt.Sprintf("addr add %v/%d dev eth0", h.Address(), net4.Bits()),
		fmt.Sprintf("addr add %v/%d dev eth0 nodad", h.Address6(), net6.Bits()),
		"link set eth0 up",
		// The way to the rest of the world, as hosts have one; it ends there.
		"route add default via "+gateway4+" dev eth0",
		"route add default via "+gateway6+" dev eth0")
}
