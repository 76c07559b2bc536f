package netlab

import (
	"fmt"
	"net/netip"
	"os/exec"
	"time"
)

// A Cable is what lies between a host and the switch. The zero value is a perfect one.
type Cable struct {
	// Rate in bits per second bounds each direction. 0: as fast as the machine.
	Rate int64
	// Delay is how long what the host sends is on its way: half of what a host
	// adds to a round trip of its own, and to one of another host.
	Delay time.Duration
	// Loss is the share of what the host sends that never arrives, 0 to 1.
	Loss float64
	// Reorder is the share of what the host sends that overtakes all that is on its
	// way: it has no delay. It needs a Delay, as with netem.
	Reorder float64
	// Seed is that of loss and reordering.
	Seed uint64
}

// Loss and reordering concern packets, not the bursts of up to 64 KiB that interfaces
// hand over as one.
func (c Cable) packets() bool { return c.Loss > 0 || c.Reorder > 0 }

// carried tells whether it takes more than the kernel does by itself.
func (c Cable) carried() bool { return c.Delay > 0 || c.packets() }

// Shape gives every host such a cable, from now on. Packets under way in the old one
// may be lost.
func (l *Lab) Shape(c Cable) {
	l.t.Helper()
	for i, h := range l.hosts {
		each := c
		each.Seed += uint64(i)
		h.Shape(each)
	}
}

// Shape gives the host such a cable, from now on.
func (h *Host) Shape(c Cable) {
	t := h.lab.t
	t.Helper()
	if c.Rate < 0 || c.Delay < 0 || c.Loss < 0 || c.Loss > 1 || c.Reorder < 0 || c.Reorder > 1 || c.Reorder > 0 && c.Delay == 0 {
		t.Fatalf("netlab: there is no such cable: %+v", c)
	}
	h.unlay()
	h.limit(h.lab.center, h.port, 0)
	segments := 65535
	if c.packets() {
		segments = 1
	}
	h.batch(fmt.Sprintf("link set eth0 gso_max_segs %d", segments))
	if c.carried() {
		h.lay(c)
	}
	h.limit(h, "eth0", c.Rate)
	h.limit(h.lab.center, h.port, c.Rate)
}

// limit bounds what an interface sends.
func (h *Host) limit(where *Host, device string, rate int64) {
	t := h.lab.t
	t.Helper()
	tc := func(args ...string) ([]byte, error) {
		return exec.Command("tc", append([]string{"-n", where.namespace, "qdisc"}, args...)...).CombinedOutput()
	}
	if rate == 0 {
		_, _ = tc("del", "dev", device, "root") // there may be none
		return
	}
	out, err := tc("replace", "dev", device, "root", "tbf", "rate", fmt.Sprintf("%dbit", rate), "burst", fmt.Sprint(bucket(rate)), "latency", "50ms")
	if err != nil {
		t.Skipf("netlab: no token buckets here: %v: %s", err, out)
	}
}

// bucket is how many bytes may go at once: those of a millisecond, at the least two
// of the bursts that interfaces hand over.
func bucket(rate int64) int64 { return max(rate/8/1000, 2<<16) }

// nobody is an address of an interface that no host has.
const nobody = "02:00:00:00:00:00"

// Cut parts each host of a from each of b, both ways: what they send each other
// vanishes. All of them still reach the hosts that are in neither.
func (l *Lab) Cut(a, b []int) {
	l.t.Helper()
	for _, i := range a {
		for _, k := range b {
			if i != k {
				l.poison(i, k)
				l.poison(k, i)
			}
		}
	}
}

// Heal undoes every Cut.
func (l *Lab) Heal() {
	l.t.Helper()
	for pair := range l.cut {
		for _, a := range l.hosts[pair[1]].addresses() {
			l.hosts[pair[0]].batch(fmt.Sprintf("neigh del %v dev eth0", a))
		}
	}
	clear(l.cut)
}

// poison makes host from send what is for host to nowhere.
func (l *Lab) poison(from, to int) {
	l.t.Helper()
	for _, a := range l.hosts[to].addresses() {
		l.hosts[from].batch(fmt.Sprintf("neigh replace %v lladdr %s nud permanent dev eth0", a, nobody))
	}
	l.cut[[2]int{from, to}] = true
}

func (h *Host) addresses() []netip.Addr { return []netip.Addr{h.Address(), h.Address6()} }

// Unplug pulls the host's cable out of the switch. Neither end can tell: interfaces
// stay up.
func (h *Host) Unplug() {
	h.lab.t.Helper()
	h.lab.center.batch("link set " + h.port + " nomaster")
}

// Plug undoes Unplug.
func (h *Host) Plug() {
	h.lab.t.Helper()
	h.lab.center.batch("link set " + h.port + " master bridge")
}

// lostTable is that of the routes of dropped flows: to the gateway, which is not there.
const lostTable = 77

// The gateway.
const (
	gateway4 = "10.77.0.254"
	gateway6 = "fd77::fe"
)

// DropFlows makes the TCP connections that two hosts have now vanish, both ways, as a
// firewall does that forgets idle ones; connections made later work. It returns how
// many it were.
func (l *Lab) DropFlows(a, b int) int {
	l.t.Helper()
	flows := max(l.hosts[a].dropFlows(l.hosts[b]), l.hosts[b].dropFlows(l.hosts[a]))
	return flows
}

func (h *Host) dropFlows(to *Host) int {
	h.lab.t.Helper()
	flows := h.Flows(to)
	h.batch(
		fmt.Sprintf("neigh replace %s lladdr %s nud permanent dev eth0", gateway4, nobody),
		fmt.Sprintf("neigh replace %s lladdr %s nud permanent dev eth0", gateway6, nobody),
		fmt.Sprintf("route replace default via %s dev eth0 table %d", gateway4, lostTable),
		fmt.Sprintf("route replace default via %s dev eth0 table %d", gateway6, lostTable))
	for _, f := range flows {
		family := "-4"
		if f.Remote.Addr().Is6() {
			family = "-6"
		}
		out, err := h.ip(family, "rule", "add", "ipproto", "tcp", "to", f.Remote.Addr().String(),
			"sport", fmt.Sprint(f.Local.Port()), "dport", fmt.Sprint(f.Remote.Port()), "table", fmt.Sprint(lostTable))
		if err != nil {
			h.lab.t.Skipf("netlab: no routing by ports here: %v: %s", err, out)
		}
	}
	return len(flows)
}
